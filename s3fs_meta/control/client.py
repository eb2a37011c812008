"""The client of the control socket, for commands of the command line that run an event loop.

Owns: one request and its answer, while other tasks run. Does not know: the effect of a command.
``plain_call`` is for commands that have no other tasks.
"""

import socket
import threading
from pathlib import Path
from typing import Any

import trio

from s3fs_meta.control.lines import LineReader
from s3fs_meta.control.plain_call import connect, gone, no_report, result_of
from s3fs_meta.control.protocol import Message, Report, decode, encode


async def call(
    directory: Path,
    command: str,
    arguments: Message | None = None,
    report: Report = no_report,
) -> dict[str, Any]:
    """Ask the mount whose state is in *directory* and return its result.

    Args:
        directory: a state directory.
        command: the name of the mount's handler.
        arguments: for the handler.
        report: called with every progress event, on this task.

    Raises:
        NotMountedError: no mount listens on the socket.
        ControlError: the mount answered with an error, or hung up.

    Schedule point: always.  Locks: takes none.
    """
    async with await _connect(directory) as stream:
        try:
            await stream.send_all(encode({"command": command, "arguments": arguments or {}}))
            return await _result(LineReader(stream), report)
        except trio.BrokenResourceError as exc:
            raise gone() from exc


async def _connect(directory: Path) -> trio.SocketStream:
    made: list[socket.socket] = []
    abandoned = threading.Event()

    def connect_waiting() -> None:
        made.append(connect(directory))
        if abandoned.is_set():
            made[0].close()

    # In a thread: a full queue of connections makes a non-blocking connect(2) fail with EAGAIN
    # instead of waiting (unix(7)), which trio takes for success.
    try:
        await trio.to_thread.run_sync(connect_waiting, abandon_on_cancel=True)
    except trio.Cancelled:
        abandoned.set()  # the later of this task and the thread closes the connection
        for connection in made:
            connection.close()
        raise
    return trio.SocketStream(trio.socket.from_stdlib_socket(made[0]))


async def _result(lines: LineReader, report: Report) -> dict[str, Any]:
    while line := await lines.next_line():
        result = result_of(decode(line), report)
        if result is not None:
            return result
    raise gone()
