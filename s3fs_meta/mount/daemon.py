"""A mount in the background: a child process serves it; the parent waits until the child is ready.

Owns: the fork, and the messages over a socket between parent and child. Does not know: mounts.
Keeps: no thread or trio loop exists before the fork, because a lock that another thread holds would
stay locked in the child. The parent reports the child's error and exit status. If the parent is
killed before the child is ready, the child receives SIGTERM and ends: a killed command mounts
nothing. If the parent is stopped, for example by Ctrl-Z, the child drops progress messages and
never waits.

    child → parent   {"notice": text}  {"progress": [what, done, total]}  {"ask": prompt}
                     {"ready": true}  {"failed": text, "status": n}
    parent → child   {"answer": text}  {"refused": text}
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from s3fs_meta.console import exits
from s3fs_meta.console.boundary import PROGRAM, print_line, report, text_of
from s3fs_meta.console.ui import Front
from s3fs_meta.errors import PassphraseError, S3fsError
from s3fs_meta.mount.limits import CHILD_END_S_MAX
from s3fs_meta.state_paths import open_regular

_END_POLL_S: Final = 0.01
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
UMASK: Final = 0o077  # local files of a mount are private to the user


class RemoteFront:
    """A front that shows messages on the parent's terminal, until ``ready`` is called."""

    def __init__(self, connection: socket.socket, *, detach_at_end: bool = False) -> None:
        self._connection = connection
        self.detach_at_end = detach_at_end
        self._lines = connection.makefile("rb")
        self._open = True

    def notice(self, text: str) -> None:
        """Show one line on the parent's terminal."""
        self._send({"notice": text})

    def progress(self, what: str, done: int, total: int) -> None:
        """Update a progress bar on the parent's terminal, unless the parent is behind."""
        if done >= total or self._keeps_up():
            self._send({"progress": [what, done, total]})

    def ask(self, prompt: str) -> str:
        """Make the parent ask the user for a secret.

        Raises:
            PassphraseError: the parent has no terminal.
        """
        self._send({"ask": prompt})
        reply = _parse(self._lines.readline())
        if "answer" not in reply:
            raise PassphraseError(reply.get("refused", "stdin is not a terminal"))
        return str(reply["answer"])

    def ready(self) -> None:
        """Make the parent exit successfully."""
        if self.detach_at_end:
            os.setsid()
        _end_with_parent(0)
        self._send({"ready": True})
        self.close()

    def failed(self, text: str, status: int) -> None:
        """Send an error and its exit status to the parent, which then exits."""
        self._send({"failed": text, "status": status})
        self.close()

    def close(self) -> None:
        """Close the child's connection to the parent."""
        self._open = False
        self._lines.close()
        self._connection.close()

    def _keeps_up(self) -> bool:
        """Return whether the parent reads its messages. Never waits.

        The socket counts as writable while at most a quarter of its buffer is in use. The remaining
        room is for the few other messages, which are never dropped.
        Source: unix_writable() in net/unix/af_unix.c of Linux.
        """
        if not self._open:
            return False
        poll = select.poll()
        poll.register(self._connection, select.POLLOUT)
        return bool(poll.poll(0))

    def _send(self, message: dict[str, Any]) -> None:
        if self._open:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._connection.sendall(json.dumps(message).encode() + b"\n")


def run_in_background(
    body: Callable[[Front], None], log: Path, front: Front, *, automounted: bool = False
) -> int:
    """Run *body* in a child process; return when *body* calls ``ready`` or fails.

    Args:
        body: receives a front that sends messages to the parent; continues after ``ready``.
        log: file for the child's standard output and error.
        front: shows the messages and prompts of the child in this process.
        automounted: True to keep the child in this process group until the child is ready. Only
            the automounter's process group can access the mountpoint before that (autofs(5)).

    Returns:
        The exit status of the parent; if the child failed, the status of its error.
    """
    assert threading.active_count() == 1, "the fork must precede any thread"
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _end_with_parent(signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(exits.ExitStatus.INTERRUPTED)  # the parent was killed before prctl(2)
        ours.close()
        _be_child(body, log, RemoteFront(theirs, detach_at_end=automounted))
    theirs.close()
    with ours:
        try:
            return _attend(ours, front, log)
        except KeyboardInterrupt:
            os.kill(pid, signal.SIGTERM)
            _wait_for_end(pid)
            raise


def _end_with_parent(number: int) -> None:
    """Make the kernel send *number* to this process when the parent exits; 0 sends no signal."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _wait_for_end(pid: int) -> None:
    """Wait up to CHILD_END_S_MAX for the exit of a child that was asked to exit.

    After the child's exit nothing is mounted, and the caller can remove the mountpoint.
    """
    deadline_s = time.monotonic() + CHILD_END_S_MAX
    while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline_s:
        time.sleep(_END_POLL_S)


def _be_child(body: Callable[[Front], None], log: Path, front: RemoteFront) -> None:
    """Run *body* in a new process session (setsid(2)); never return."""
    status: int = exits.ExitStatus.BUG
    try:
        if not front.detach_at_end:
            os.setsid()
        os.chdir("/")
        os.umask(UMASK)
        _redirect(log)
        body(front)
        status = exits.ExitStatus.DONE
    except BaseException as exc:  # noqa: BLE001, ASYNC103  # no parent code may run in the child
        status = report(exc)
        front.failed(_summary(exc, log), status)
    finally:
        # os._exit runs no exit handlers of the parent process and flushes no streams.
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(status)


def _summary(exc: BaseException, log: Path) -> str:
    known = [leaf for leaf in exits.leaves(exc) if isinstance(leaf, (S3fsError, OSError))]
    return text_of(known[0]) if known else f"the mount failed because of a bug; see {log}"


def _redirect(log: Path) -> None:
    """Replace the standard streams. If the log cannot be opened, only the parent reports this."""
    _replace(os.open(os.devnull, os.O_RDWR), (0, 1, 2))
    _replace(open_regular(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), (1, 2))


def _replace(fd: int, streams: tuple[int, ...]) -> None:
    for stream in streams:
        os.dup2(fd, stream)
    # If the caller had closed descriptor 0, 1 or 2, os.open may have reused the number: keep it.
    if fd not in streams:
        os.close(fd)


def _attend(child: socket.socket, front: Front, log: Path) -> int:
    """Relay the child's messages and prompts until the child is ready or has failed."""
    for message in _messages(child):
        match message:
            case {"notice": str(text)}:
                front.notice(text)
            case {"progress": [str(what), int(done), int(total)]}:
                front.progress(what, done, total)
            case {"ask": str(prompt)}:
                answer = json.dumps(_ask(front, prompt)).encode() + b"\n"
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    child.sendall(answer)  # the loop ends when the child closes the socket or ends
            case {"ready": True}:
                front.ready()
                return exits.ExitStatus.DONE
            case {"failed": str(text), "status": int(status)}:
                front.ready()
                print_line(PROGRAM, text)
                return status
            case _:
                raise AssertionError(f"unexpected message of the child process: {message!r}")
    front.ready()
    print_line(PROGRAM, f"the mount ended before it was ready; see {log}")
    return exits.ExitStatus.BUG


def _ask(front: Front, prompt: str) -> dict[str, str]:
    try:
        return {"answer": front.ask(prompt)}
    except PassphraseError as exc:
        return {"refused": exc.message}


def _messages(connection: socket.socket) -> Iterator[dict[str, Any]]:
    """Yield the messages of the child until it closes the socket, or is killed."""
    with connection.makefile("rb") as lines, contextlib.suppress(ConnectionResetError):
        for line in lines:
            yield _parse(line)


def _parse(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
