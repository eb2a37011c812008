"""Tests of the exit statuses of the program, one for each family of errors."""

from collections.abc import Iterator

import pytest

from s3fs_meta import errors
from s3fs_meta.console import exits
from s3fs_meta.console.exits import ExitStatus


def _all_errors(root: type[errors.S3fsError]) -> Iterator[type[errors.S3fsError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _all_errors(kind)


def _made(kind: type[errors.S3fsError]) -> errors.S3fsError:
    error = kind.__new__(kind)
    error.message = "text"
    return error


@pytest.mark.parametrize(
    "kind",
    [one for one in _all_errors(errors.S3fsError) if one is not errors.S3fsError],
    ids=lambda kind: kind.__name__,
)
def test_every_error_class_has_an_exit_status(kind: type[errors.S3fsError]) -> None:
    error = errors.ControlError("ControlError", "x") if kind is errors.ControlError else _made(kind)

    assert exits.status_of(error) is not ExitStatus.BUG


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.UsageError("x"), ExitStatus.USAGE),
        (errors.PassphraseError("x"), ExitStatus.PASSPHRASE),
        (errors.StoreAccessError("k", "c", "a"), ExitStatus.STORE_ACCESS),
        (errors.TransientStoreError("k", "c"), ExitStatus.STORE),
        (errors.FormatError("k", "w"), ExitStatus.CORRUPTION),
        (PermissionError(13, "x"), ExitStatus.LOCAL),
        (RuntimeError("x"), ExitStatus.BUG),
    ],
)
def test_exit_status_table_lists_each_subclass_before_its_base_class(
    error: Exception, expected: ExitStatus
) -> None:
    """The first matching entry of the exit status table determines the status of an error."""
    assert exits.status_of(error) is expected


def test_error_received_from_a_daemon_keeps_its_exit_status() -> None:
    """An error that arrives through the control socket has the exit status of its class."""
    fenced = errors.ControlError("FencedError", "x")

    assert exits.status_of(fenced) is ExitStatus.FENCED
    assert exits.is_kind(fenced, errors.FencedError)
    assert exits.status_of(errors.ControlError("Nonsense", "x")) is ExitStatus.CONTROL
    assert exits.status_of(errors.ControlError("Any", "x")) is ExitStatus.CONTROL


def test_control_client_knows_all_error_classes_of_the_package() -> None:
    """A client computes the exit status from the class name of the daemon's error."""
    modules = {one.__module__ for one in _all_errors(errors.S3fsError)}
    shared = {name for name in modules if name.endswith("errors") and name.count(".") == 1}

    assert shared == {home.__name__ for home in exits.HOMES}
    assert exits.status_of(errors.ControlError("LostLeaseError", "x")) is ExitStatus.CORRUPTION
    assert exits.status_of(errors.ControlError("KilledMountError", "x")) is ExitStatus.NOT_MOUNTED


def test_every_exit_status_has_a_description_for_help_texts() -> None:
    assert set(exits.MEANINGS) == set(ExitStatus)


def test_fsck_and_mount_exit_only_with_statuses_that_their_manual_pages_list() -> None:
    """The manual pages fsck(8) and mount(8) list each status of these commands."""
    assert {exits.fsck_status(one) for one in ExitStatus} <= set(exits.FSCK_MEANINGS)
    assert {exits.mount_status(one) for one in ExitStatus} <= set(exits.MOUNT_MEANINGS)
    assert exits.fsck_status(ExitStatus.USAGE) == 16
    assert exits.mount_status(ExitStatus.HELD) == 32


def test_exceptions_in_nested_exception_groups_are_found() -> None:
    class GroupError(Exception):
        exceptions = (ValueError(1), KeyError(2))

    assert [type(leaf) for leaf in exits.leaves(GroupError())] == [ValueError, KeyError]
