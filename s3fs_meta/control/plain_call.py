"""Requests to a mount without an event loop, for commands that must finish within 0.1 s.

Owns: connecting to a mount and interpreting its answer (also for ``client``). Does not know: the
effects of commands. Loading trio would take three times as long as the rest of such a command.
"""

import contextlib
import socket
from pathlib import Path
from typing import Any

from s3fs_meta.control.protocol import Message, Report, decode, encode, socket_path
from s3fs_meta.errors import ControlError
from s3fs_meta.limits import CONTROL_MESSAGE_BYTES_MAX
from s3fs_meta.mount_errors import NotMountedError


def no_report(_event: Message) -> None:
    """Ignore a progress message."""


def call(directory: Path, command: str, arguments: Message) -> dict[str, Any]:
    """Send a request to the mount with the state directory *directory*; wait for the result.

    Args:
        directory: a state directory.
        command: the name of a handler in the mount.
        arguments: the arguments of the handler.

    Raises:
        NotMountedError: no mount listens on the socket.
        ControlError: the mount answered with an error, or closed the connection.
    """
    with connect(directory) as connection:
        try:
            connection.sendall(encode({"command": command, "arguments": arguments}))
            with connection.makefile("rb") as lines:
                while line := lines.readline(CONTROL_MESSAGE_BYTES_MAX):
                    result = result_of(decode(line), no_report)
                    if result is not None:
                        return result
        except ConnectionError as exc:
            raise gone() from exc
    raise gone()


def connect(directory: Path) -> socket.socket:
    """Return a connection to the mount with the state directory *directory*.

    The call blocks while the mount's queue of connections is full.

    Raises:
        NotMountedError: no mount listens on the socket.
        ControlError: this user may not send requests to the mount.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    with contextlib.ExitStack() as undo:
        undo.callback(connection.close)
        try:
            with socket_path(directory) as path:
                connection.connect(path)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as exc:
            raise NotMountedError(str(directory)) from exc
        except PermissionError as exc:
            raise ControlError(
                "NotPermittedError",
                f"the state directory {directory} belongs to another user; only the user of the "
                "mount may send requests",
            ) from exc
        undo.pop_all()
    return connection


def result_of(message: Message, report: Report) -> dict[str, Any] | None:
    """Return the result in *message*; pass a progress event to *report* and return None.

    Raises:
        ControlError: the message reports an error.
    """
    if "progress" in message:
        report(message["progress"])
        return None
    if "error" in message:
        raise ControlError(message["error"]["kind"], message["error"]["message"])
    return dict(message["result"])


def gone() -> ControlError:
    """Return the error for a connection that the mount closed without an answer."""
    return ControlError(
        "ControlError", "the mount ended before it answered the request; see its log"
    )
