"""The client of the control socket for commands with an event loop.

Owns: sending one request and waiting for its answer while other tasks run. Does not know: the
effects of commands. ``plain_call`` serves commands without an event loop.
"""

import socket
import threading
from pathlib import Path
from typing import Any

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.control.lines import LineReader
from s3fs_meta.control.plain_call import (
    PATIENCE,
    Patience,
    connect,
    no_report,
    require_answer,
    result_of,
)
from s3fs_meta.control.protocol import Message, Report, decode, encode
from s3fs_meta.mount_errors import UnansweredError


async def call(
    directory: Path,
    command: str,
    arguments: Message | None = None,
    report: Report = no_report,
    patience: Patience = PATIENCE,
) -> dict[str, Any]:
    """Send a request to the mount with the state directory *directory*; return its result.

    Args:
        directory: a state directory.
        command: the name of a handler in the mount.
        arguments: the arguments of the handler.
        report: called with every progress event, in the calling task.
        patience: the time after which a daemon that does not answer is an error.

    Raises:
        NotMountedError: no mount listens on the socket.
        SilentDaemonError: the mount is stopped or hangs.
        ControlError: the mount answered with an error, or closed the connection.

    Always yields to other tasks. Takes no locks.
    """
    async with await _connect(directory, patience) as stream:
        try:
            await stream.send_all(encode({"command": command, "arguments": arguments or {}}))
            lines = LineReader(stream)
            while line := await _next_line(lines, directory, patience):
                result = result_of(decode(line), report)
                if result is not None:
                    return result
        except trio.BrokenResourceError as exc:
            raise UnansweredError from exc
    raise UnansweredError


async def _connect(directory: Path, patience: Patience) -> trio.SocketStream:
    made: list[socket.socket] = []
    abandoned = threading.Event()

    def connect_waiting() -> None:
        made.append(connect(directory, patience))
        if abandoned.is_set():
            made[0].close()

    # Connect in a thread, because a non-blocking connect(2) does not wait if the queue is full.
    # On the event loop, connect(2) would fail with EAGAIN (unix(7)), which trio treats as success.
    try:
        await in_thread(connect_waiting, abandon_on_cancel=True)
    except trio.Cancelled:
        abandoned.set()  # the abandoned thread closes a connection that it still makes
        for connection in made:
            connection.close()
        raise
    return trio.SocketStream(trio.socket.from_stdlib_socket(made[0]))


async def _next_line(lines: LineReader, directory: Path, patience: Patience) -> bytes:
    """Return the next line, or b"" at the end; check the daemon whenever it sends nothing."""
    while True:
        with trio.move_on_after(patience.probe_s):
            return await lines.next_line()
        await in_thread(require_answer, directory, patience, abandon_on_cancel=True)
