"""The wrapper of handlers for pyfuse3: it converts errors to FUSEError, because others end the mount.

Owns: converting errors to FUSEError, logging failures, degrading the mount, the counts of
requests. Does not know: what the handlers do.
Most handlers are plain functions, and ``answered`` creates the coroutine that pyfuse3 needs. So a
request needs one coroutine, not two. Only a handler that must wait returns another coroutine.
A handler is called again after UnfinishedWalkError, which it raises before it changes a name.
"""

import functools
import logging
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, Final, Protocol

import trio

from s3fs_meta.background_task import lacks_thread
from s3fs_meta.errors import (
    BadRowError,
    DamagedDatabaseError,
    FormatError,
    NewerFormatError,
    ObjectMissingError,
    S3fsError,
    ThreadShortageError,
    UnfinishedWalkError,
)
from s3fs_meta.fuse import errnos, past_requests
from s3fs_meta.fuse.extension import pyfuse3
from s3fs_meta.limits import NAME_BYTES_MAX
from s3fs_meta.mount_state import MountState, MountStatus

_log = logging.getLogger(__name__)

Handler = Callable[..., Coroutine[Any, Any, Any]]

# Handlers that never leave a change incomplete, so that an error need not undo the open commit
# group.
CHANGES_NO_TWO_ROWS: Final = frozenset(
    {
        "getattr",
        "getxattr",
        "listxattr",
        "lookup",
        "lseek",
        "open",
        "opendir",
        "read",
        "readdir",
        "readlink",
        "releasedir",
        "statfs",
        "statx",
        "fsync",
        "fsyncdir",
    }
)


class Answering(Protocol):
    """The attributes that the wrapper needs from an object with handlers."""

    status: MountStatus
    requests: dict[str, int]


def answered(function: Callable[..., Any]) -> Handler:
    """Convert a function that returns the reply, or a coroutine of the reply, to a handler."""
    name = function.__name__

    @functools.wraps(function)
    async def handler(self: Answering, *arguments: Any) -> Any:
        self.requests[name] += 1
        begun = self.status.progress
        try:
            while True:  # the loop ends: each pass checks further directories
                try:
                    answer = function(self, *arguments)
                    return await answer if type(answer) is CoroutineType else answer
                except UnfinishedWalkError:
                    await trio.lowlevel.checkpoint()
        except pyfuse3.FUSEError:
            raise
        except S3fsError as exc:
            raise pyfuse3.FUSEError(failed(self.status, name, arguments, exc, begun)) from None
        except Exception as exc:  # noqa: BLE001 - the boundary: one bug must not end the mount
            raise pyfuse3.FUSEError(broken(self.status, name, arguments, exc)) from None

    handler.is_handler = True  # type: ignore[attr-defined]  # a test requires this attribute
    return handler


def failed(
    status: MountStatus,
    name: str,
    arguments: tuple[object, ...],
    exc: S3fsError,
    begun: tuple[int, int] | None = None,
) -> int:
    """Return the errno of an S3fsError; log the error unless it is a normal result.

    An unreadable row or a damaged page of the database fails only the request, unless the request
    had already changed rows.

    Args:
        status: the status of the mount; it may be degraded.
        name: the name of the request.
        arguments: the arguments of the request, for the log.
        exc: the error.
        begun: ``MountStatus.progress`` at the start of the request, or None if unknown.
    """
    of_past = past_requests.errno_of(name, arguments, exc)
    if of_past is not None:
        return of_past
    code = errnos.errno_of(exc)
    if not isinstance(exc, errnos.ORDINARY):
        text = f"{exc}{_advice(exc, status)}"
        _log.error(
            "request %s%s failed: %s [%s]", name, _described(arguments), text, errnos.word(code)
        )
    half_done = (
        isinstance(exc, (BadRowError, DamagedDatabaseError))
        and not exc.changed_nothing
        # ``progress`` counts all requests, so it may have changed while a read waited.
        and name not in CHANGES_NO_TWO_ROWS
        and (begun is None or status.is_half_done(begun))
    )
    if half_done or isinstance(exc, errnos.DEGRADING):
        _give_up(status, name, str(exc))
    return code


def _advice(exc: S3fsError, status: MountStatus) -> str:
    """Return the advice for a damaged object; the messages of other errors include advice."""
    shows_fixed_state = status.read_only and status.state is MountState.SERVING
    if isinstance(exc, ObjectMissingError) and shows_fixed_state:
        return (
            "; the writer deletes objects that only states older than the retention need: mount"
            " again to show a newer state; if the error remains, s3fs-meta fsck -n --deep shows"
            " the damage"
        )
    if isinstance(exc, (FormatError, ObjectMissingError)) and not isinstance(exc, NewerFormatError):
        return (
            "; s3fs-meta fsck -n --deep shows the damage, and s3fs-meta fsck -y --deep repairs it"
            " after an unmount"
        )
    return ""


def broken(status: MountStatus, name: str, arguments: tuple[object, ...], exc: Exception) -> int:
    """Return the errno of an unexpected exception, and degrade the mount.

    An OSError means that the local disk failed, because the layers below convert other OSErrors.
    If no thread can be started, only the request fails: like a request to the store, a call in a
    thread happens only while no change is incomplete.
    """
    if lacks_thread(exc):
        return failed(status, name, arguments, ThreadShortageError())
    if isinstance(exc, OSError):
        _log.error("request %s%s: the local disk failed: %s", name, _described(arguments), exc)
        _give_up(status, name, f"the local disk failed: {exc}")
    else:
        _log.error(
            "request %s%s raised an unexpected exception",
            name,
            _described(arguments),
            exc_info=exc,
        )
        _give_up(status, name, f"internal error in {name}: {exc!r}")
    return errnos.UNEXPECTED


def _give_up(status: MountStatus, name: str, why: str) -> None:
    """Make the mount read-only, and roll back an incomplete change."""
    if name in CHANGES_NO_TWO_ROWS:
        status.degrade(why)
    else:
        status.break_off(why)


def _described(arguments: tuple[object, ...]) -> str:
    """Return the numbers and short names in a request, without content, for a log line."""
    shown = [_shown(argument) for argument in arguments if isinstance(argument, (int, bytes))]
    return f"({', '.join(shown)})"


def _shown(argument: int | bytes) -> str:
    if isinstance(argument, bytes) and len(argument) > NAME_BYTES_MAX:
        return f"<{len(argument)} bytes>"
    return repr(argument)
