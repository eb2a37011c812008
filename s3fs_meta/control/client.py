"""The other end of the control socket: what commands of the command line use.

Owns: one request and its answer. Does not know: what commands do.
"""

import contextlib
import socket
import threading
from pathlib import Path
from typing import Any

import trio

from s3fs_meta.control.lines import LineReader
from s3fs_meta.control.protocol import Message, Report, decode, encode, socket_path
from s3fs_meta.errors import ControlError, NotMountedError


def no_report(_event: Message) -> None:
    """Show nothing."""


async def call(
    directory: Path,
    command: str,
    arguments: Message | None = None,
    report: Report = no_report,
) -> dict[str, Any]:
    """Ask the mount whose state is in *directory* and return its result.

    Args:
        directory: a state directory.
        command: which handler of the mount.
        arguments: for the handler.
        report: called with every progress event, on this task.

    Raises:
        NotMountedError: nobody listens.
        ControlError: the mount answered with an error, or hung up.

    Schedule point: always.  Locks: takes none.
    """
    async with await _connect(directory) as stream:
        try:
            await stream.send_all(encode({"command": command, "arguments": arguments or {}}))
            return await _result(LineReader(stream), report)
        except trio.BrokenResourceError as exc:
            raise _gone() from exc


async def _connect(directory: Path) -> trio.SocketStream:
    made: list[socket.socket] = []
    abandoned = threading.Event()

    def connect() -> None:
        made.append(_connect_waiting(directory))
        if abandoned.is_set():
            made[0].close()

    # In a thread: a full queue of connections makes a non-blocking connect(2) fail with EAGAIN
    # instead of waiting (unix(7)), which trio takes for success.
    try:
        await trio.to_thread.run_sync(connect, abandon_on_cancel=True)
    except trio.Cancelled:
        abandoned.set()  # whoever is second, this or the thread, finds the connection
        for connection in made:
            connection.close()
        raise
    return trio.SocketStream(trio.socket.from_stdlib_socket(made[0]))


def _connect_waiting(directory: Path) -> socket.socket:
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
                "NotPermittedError", f"{directory} belongs to another user, who alone may ask"
            ) from exc
        undo.pop_all()
    return connection


async def _result(lines: LineReader, report: Report) -> dict[str, Any]:
    while line := await lines.next_line():
        message = decode(line)
        if "progress" in message:
            report(message["progress"])
        elif "error" in message:
            raise ControlError(message["error"]["kind"], message["error"]["message"])
        else:
            return dict(message["result"])
    raise _gone()


def _gone() -> ControlError:
    return ControlError("ControlError", "the mount ended before it answered; see its log")
