"""Tests of the error boundary of FUSE handlers, which lets only FUSEError pass."""

import errno
import inspect
import logging

import pyfuse3
import pytest

from s3fs_meta.errors import (
    BadRowError,
    DamagedDatabaseError,
    DatabaseFullError,
    FormatError,
    LostBlockError,
    MetadataError,
    NewerFormatError,
    NoEntryError,
    ObjectMissingError,
    S3fsError,
    StoreUnavailableError,
)
from s3fs_meta.fuse import error_boundary
from s3fs_meta.fuse.error_boundary import answered, broken
from s3fs_meta.fuse.operations import RAW_HANDLERS, Operations
from s3fs_meta.fuse.raw_operations import RawOperations
from s3fs_meta.mount_state import MountState, MountStatus


class Desk:
    """Two handlers, whose outcome the test sets."""

    def __init__(self) -> None:
        self.status = MountStatus()
        self.status.enter(MountState.SERVING)
        self.requests = {"plain": 0, "waiting": 0}

    @answered
    def plain(self, outcome: object) -> object:
        """Return the outcome that the test has set, or raise it if it is an exception."""
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @answered
    async def waiting(self, outcome: object) -> object:
        """Return the outcome that the test has set, or raise it if it is an exception."""
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.fixture(params=["plain", "waiting"])
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of the plain handler, or of the async handler."""
    return str(request.param)


async def test_result_of_a_handler_is_returned_and_the_request_is_counted(name: str) -> None:
    desk = Desk()
    assert await getattr(desk, name)(7) == 7
    assert desk.requests[name] == 1


@pytest.mark.parametrize(
    ("error", "code", "state", "logged"),
    [
        (NoEntryError(1, b"x"), errno.ENOENT, MountState.SERVING, False),
        (pyfuse3.FUSEError(errno.ENODATA), errno.ENODATA, MountState.SERVING, False),
        (StoreUnavailableError("k", 8, 60, "x"), errno.EIO, MountState.SERVING, True),
        (LostBlockError(3, "torn"), errno.EIO, MountState.SERVING, True),
        (DatabaseFullError("full"), errno.EIO, MountState.DEGRADED, True),
        (MetadataError("loop", 3), errno.EIO, MountState.DEGRADED, True),
        (OSError(errno.EIO, "disk"), errno.EIO, MountState.DEGRADED, True),
        (ZeroDivisionError("bug"), errno.EIO, MountState.DEGRADED, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_exception_of_a_handler_becomes_an_errno(
    name: str,
    error: Exception,
    code: int,
    state: MountState,
    logged: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Damage and bugs are logged and may degrade the mount. Errors of the caller are not logged."""
    desk = Desk()
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await getattr(desk, name)(error)
    assert caught.value.errno == code
    assert desk.status.state is state
    lines = [record for record in caplog.records if record.name == "s3fs_meta.fuse.error_boundary"]
    assert len(lines) == int(logged)


async def test_request_that_cannot_start_a_thread_fails_without_degrading_the_mount(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()

    with pytest.raises(pyfuse3.FUSEError) as caught:
        await getattr(desk, name)(RuntimeError("can't start new thread"))

    assert caught.value.errno == errno.EIO
    assert desk.status.state is MountState.SERVING
    assert "no thread can be started" in caplog.text


@pytest.mark.parametrize(
    ("error", "undone"),
    [
        (ZeroDivisionError("bug"), 1),
        (OverflowError("the number is too large for a row"), 1),
        (MetadataError("no row", 3), 1),
        (NoEntryError(1, b"x"), 0),
        (StoreUnavailableError("k", 8, 60, "x"), 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_partial_change_of_a_failed_handler_is_rolled_back(
    name: str, error: Exception, undone: int
) -> None:
    """After an unexpected error, the open commit group is rolled back and not committed."""
    desk = Desk()
    taken_back: list[MountState] = []
    desk.status = MountStatus(undo=lambda: taken_back.append(desk.status.state))
    desk.status.enter(MountState.SERVING)
    with pytest.raises(pyfuse3.FUSEError):
        await getattr(desk, name)(error)
    assert taken_back == [MountState.DEGRADED] * undone


@pytest.mark.parametrize("handler", ["lookup", "open"])
def test_failure_of_a_reading_handler_does_not_roll_back_the_open_commit_group(
    handler: str,
) -> None:
    """A rollback is unnecessary, because a handler that only reads makes no change."""
    taken_back: list[None] = []
    status = MountStatus(undo=lambda: taken_back.append(None))
    broken(status, handler, (1, b"x"), ZeroDivisionError("bug"))
    assert status.state is MountState.DEGRADED
    assert taken_back == []


def test_every_handler_that_is_listed_as_reading_exists() -> None:
    """A misspelt name in the list of reading handlers would cause unnecessary rollbacks."""
    handlers = {name for name in vars(Operations) if hasattr(vars(Operations)[name], "is_handler")}
    assert handlers | set(RAW_HANDLERS) >= error_boundary.CHANGES_NO_TWO_ROWS
    assert all(callable(getattr(RawOperations, name)) for name in RAW_HANDLERS)
    # The handler setattr can truncate a file, which changes several rows.
    assert "setattr" not in error_boundary.CHANGES_NO_TWO_ROWS


async def test_exception_in_a_handler_is_logged_with_its_traceback_but_without_content(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Arguments that are bytes, such as file content, are not logged."""
    with caplog.at_level(logging.ERROR), pytest.raises(pyfuse3.FUSEError):
        await _unprintable(Desk())
    assert "TypeError" in caplog.text
    assert "<300 bytes>" in caplog.text


async def _unprintable(desk: Desk) -> None:
    await desk.plain(b"x" * 300, "too many")


def test_every_handler_has_the_error_boundary() -> None:
    """The extension handles forget and setxattr, and the kernel needs no access, flush and poll."""
    inherited = {
        name for name, _ in inspect.getmembers(pyfuse3.Operations, inspect.iscoroutinefunction)
    }
    ours = {name for name in inherited if name in vars(Operations)}
    assert all(hasattr(vars(Operations)[name], "is_handler") for name in ours)
    # pyfuse3 3.5 and later have a poll handler.
    assert (
        inherited - ours
        == {
            "access",
            "flush",
            "forget",
            "poll",
            "setxattr",
        }
        & inherited
    )


@pytest.mark.parametrize(
    ("error", "advised"),
    [
        (FormatError("pack/1/ab", "not authentic"), True),
        (ObjectMissingError("pack/1/ab"), True),
        (NewerFormatError("pack/1/ab", "version 9"), False),
        (StoreUnavailableError("pack/1/ab", 3, 9.0, "timeout"), False),
    ],
)
async def test_damage_is_logged_with_advice_to_run_fsck(
    name: str, caplog: pytest.LogCaptureFixture, error: Exception, advised: bool
) -> None:
    """A log line advises fsck if an object is damaged, but not if the store is unavailable."""
    desk = Desk()
    with pytest.raises(pyfuse3.FUSEError):
        await getattr(desk, name)(error)
    assert ("fsck -n --deep shows the damage" in caplog.text) is advised
    assert desk.status.state is MountState.SERVING


@pytest.mark.parametrize(
    ("state", "advised"), [(MountState.SERVING, True), (MountState.FOLLOWING, False)]
)
def test_missing_object_of_a_fixed_state_is_logged_with_advice_to_mount_again(
    caplog: pytest.LogCaptureFixture, state: MountState, advised: bool
) -> None:
    """The writer may have deleted the object after the retention; then there is no damage."""
    status = MountStatus(read_only=True)
    status.enter(state)

    assert error_boundary.failed(status, "read", (3,), ObjectMissingError("pack/1/ab")) == errno.EIO

    assert ("mount again" in caplog.text) is advised
    assert ("fsck -y --deep repairs it" in caplog.text) is not advised


@pytest.mark.parametrize(
    "error", [BadRowError("the row", 3), DamagedDatabaseError("meta.db", "a page")]
)
@pytest.mark.parametrize("name", ["lookup", "read", "setattr"])
def test_unreadable_row_degrades_a_mount_only_during_a_change(error: S3fsError, name: str) -> None:
    """While a read waits for the store, another request may change rows."""
    status = MountStatus()
    status.enter(MountState.SERVING)
    begun = status.progress
    status.require_writable()
    assert status.is_half_done(begun)

    assert error_boundary.failed(status, name, (3,), error, begun) == errno.EIO

    expected = MountState.DEGRADED if name == "setattr" else MountState.SERVING
    assert status.state is expected
