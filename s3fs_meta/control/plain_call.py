"""Requests to a mount without an event loop, for commands that must finish within 0.1 s.

Owns: connecting to a mount and interpreting its answer (also for ``client``). Does not know: the
effects of commands. Loading trio would take three times as long as the rest of such a command.
"""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from s3fs_meta.control.limits import CONTROL_PROBE_ANSWER_S_MAX, CONTROL_PROBE_S
from s3fs_meta.control.protocol import PROBE, Message, Report, decode, encode, socket_path
from s3fs_meta.errors import ControlError
from s3fs_meta.limits import CONTROL_MESSAGE_BYTES_MAX, KIB
from s3fs_meta.mount_errors import NotMountedError, SilentDaemonError, UnansweredError

_RECEIVE_BYTES: Final = 64 * KIB
_CONNECT_PAUSE_S: Final = 0.05  # pause before the next attempt if the queue is full


def no_report(_event: Message) -> None:
    """Ignore a progress message."""


class Patience(NamedTuple):
    """How long a client waits for a daemon; ``control.limits`` gives the reasons."""

    probe_s: float = CONTROL_PROBE_S  # time without a message before a check of the daemon
    answer_s: float = CONTROL_PROBE_ANSWER_S_MAX  # maximum time for the answer to a check


PATIENCE: Final = Patience()


def call(
    directory: Path, command: str, arguments: Message, patience: Patience = PATIENCE
) -> dict[str, Any]:
    """Send a request to the mount with the state directory *directory*; wait for the result.

    Args:
        directory: a state directory.
        command: the name of a handler in the mount.
        arguments: the arguments of the handler.
        patience: the time after which a daemon that does not answer is an error.

    Raises:
        NotMountedError: no mount listens on the socket.
        SilentDaemonError: the mount is stopped or hangs.
        ControlError: the mount answered with an error, or closed the connection.
    """
    with connect(directory, patience) as connection:
        connection.settimeout(patience.probe_s)
        try:
            connection.sendall(encode({"command": command, "arguments": arguments}))
            for line in _lines(connection, directory, patience):
                result = result_of(decode(line), no_report)
                if result is not None:
                    return result
        except ConnectionError as exc:
            raise UnansweredError from exc
    raise UnansweredError


def _lines(connection: socket.socket, directory: Path, patience: Patience) -> Iterator[bytes]:
    """Yield the lines that a daemon sends; check the daemon whenever it sends nothing."""
    buffer = bytearray()
    while len(buffer) <= CONTROL_MESSAGE_BYTES_MAX:
        try:
            received = connection.recv(_RECEIVE_BYTES)
        except TimeoutError:
            require_answer(directory, patience)
            continue
        if not received:
            return
        buffer += received
        while (end := buffer.find(b"\n")) >= 0:
            yield bytes(buffer[:end])
            del buffer[: end + 1]


def require_answer(directory: Path, patience: Patience) -> None:
    """Raise SilentDaemonError unless the daemon answers a request. The call blocks.

    The call succeeds if the daemon no longer listens, because then the daemon is exiting, and the
    caller's own connection reports its end.
    """
    try:
        with connect(directory, patience) as connection:
            connection.settimeout(patience.answer_s)
            connection.sendall(encode({"command": PROBE, "arguments": {}}))
            connection.recv(1)
    except TimeoutError as exc:
        raise SilentDaemonError(f"with the state directory {directory}", patience.answer_s) from exc
    except (NotMountedError, ConnectionError):
        return


def connect(directory: Path, patience: Patience = PATIENCE) -> socket.socket:
    """Return a connection to the mount with the state directory *directory*.

    The call blocks while the mount's queue of connections is full.

    Raises:
        NotMountedError: no mount listens on the socket.
        SilentDaemonError: the mount accepts no connection in time.
        ControlError: this user may not send requests to the mount.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    with contextlib.ExitStack() as undo:
        undo.callback(connection.close)
        try:
            with socket_path(directory) as path:
                _connect(connection, path, patience.answer_s)
        except BlockingIOError as exc:
            raise SilentDaemonError(
                f"with the state directory {directory}", patience.answer_s
            ) from exc
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


def _connect(connection: socket.socket, path: str, within_s: float) -> None:
    """Connect a socket; raise BlockingIOError if the queue of connections stays full (unix(7))."""
    connection.setblocking(False)
    end_s = time.monotonic() + within_s
    while True:
        try:
            connection.connect(path)
        except BlockingIOError:
            if time.monotonic() > end_s:
                raise
            time.sleep(_CONNECT_PAUSE_S)
        else:
            connection.setblocking(True)
            return


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
