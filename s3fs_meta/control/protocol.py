"""The messages of the control socket: one JSON object per line.

Owns: the form of messages, the socket's name and path. Does not know: sockets, the effects of
commands.

    client → server   {"command": "flush", "arguments": {…}}
    server → client   {"progress": {…}}            any number of times, then one of
                      {"result": {…}}
                      {"error": {"kind": "StoreUnavailableError", "message": "…"}}

A connection may carry several requests; the mount answers them in order.
"""

import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from s3fs_meta.errors import ControlError
from s3fs_meta.limits import CONTROL_MESSAGE_BYTES_MAX

SOCKET_NAME: Final = "control.sock"
PROBE: Final = "status"  # a command that the daemons of all versions answer without delay

Message = Mapping[str, Any]
Report = Callable[[Message], None]
"""Receives one progress event. It must not wait."""
Handler = Callable[[Message, Report], Awaitable[Message]]
"""Handles one command: receives its arguments and returns its result."""


class Request(NamedTuple):
    """A request: a command and its arguments."""

    command: str
    arguments: Message


def progress_to(report: Report) -> Callable[[str, int, int], None]:
    """Return a function that reports the progress of a request to its client."""

    def progress(what: str, done: int, total: int) -> None:
        report({"what": what, "done": done, "total": total})

    return progress


def encode(message: Message) -> bytes:
    """Return a message as one line of JSON.

    Raises:
        ControlError: the line would be longer than CONTROL_MESSAGE_BYTES_MAX.
    """
    line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    if len(line) > CONTROL_MESSAGE_BYTES_MAX:
        text = f"a control message of {len(line)} bytes is too long; the limit is"
        raise ControlError("ControlError", f"{text} {CONTROL_MESSAGE_BYTES_MAX} bytes")
    return line


def decode(line: bytes) -> Message:
    """Return the JSON object that a line contains.

    Raises:
        ControlError: the line is not a JSON object.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise ControlError("ControlError", "the control message is not JSON") from exc
    if not isinstance(message, dict):
        raise ControlError("ControlError", "the control message is not a JSON object")
    return message


def decode_request(line: bytes) -> Request:
    """Return the request that a line contains.

    Raises:
        ControlError: the line is not a request.
    """
    message = decode(line)
    command, arguments = message.get("command"), message.get("arguments", {})
    if not isinstance(command, str) or not isinstance(arguments, dict):
        raise ControlError("ControlError", "the control message lacks a command or valid arguments")
    return Request(command, arguments)


@contextlib.contextmanager
def socket_path(directory: Path) -> Iterator[str]:
    """Yield a path of the control socket that is short enough for the kernel.

    sun_path has only 108 bytes, so the path begins at an open descriptor of the directory.
    Source: unix(7), "Pathname sockets".
    """
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_NAME}"
    finally:
        os.close(fd)
