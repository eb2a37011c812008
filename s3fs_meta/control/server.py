"""The server of a mount's control socket.

Owns: accepting connections, checking the peer's user, one answer per request. Does not know: the
effects of commands.
Keeps: a client that closes its connection, sends garbage or stops reading does not affect other
clients; an exception in a handler becomes an error message and never ends the mount.
Tasks: one ``ControlServer.serve`` per mount, and one per connection.
"""

import contextlib
import errno
import logging
import os
import socket
import stat
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import trio

from s3fs_meta.control.lines import LineReader
from s3fs_meta.control.protocol import (
    Handler,
    Message,
    Report,
    Request,
    decode_request,
    encode,
    socket_path,
)
from s3fs_meta.errors import ControlError, S3fsError
from s3fs_meta.limits import (
    CONTROL_CONNECTIONS_MAX,
    CONTROL_EVENTS_MAX,
    CONTROL_IDLE_S_MAX,
)

_log = logging.getLogger(__name__)

_UCRED = struct.Struct("3i")  # pid, uid and gid, as returned by SO_PEERCRED: unix(7)
_ACCEPT_RETRY_S = 1.0


class ControlServer:
    """Answers the control requests to one mount."""

    def __init__(
        self,
        directory: Path,
        handlers: Mapping[str, Handler],
        *,
        bound: Collection[str] = frozenset(),
    ) -> None:
        """Create a server that does not listen yet.

        Args:
            directory: the state directory; the caller holds its lock, so an existing socket
                is left over from an earlier mount.
            handlers: the handler of each command, by the command's name.
            bound: commands that are cancelled when the client disconnects; all others run to
                completion.
        """
        self._directory = directory
        self._bound = frozenset(bound)
        self._handlers = handlers
        self._places = trio.Semaphore(CONTROL_CONNECTIONS_MAX)
        self._answering = 0
        self._quiet = trio.Event()
        self._quiet.set()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer requests until cancelled, then remove the socket.

        Always yields to other tasks. Takes no locks.
        """
        with _listen(self._directory) as listener:
            try:
                async with trio.open_nursery() as nursery:
                    task_status.started()
                    while True:
                        await self._places.acquire()
                        stream = await _accept(listener)
                        nursery.start_soon(self._converse, stream)
            finally:
                with contextlib.suppress(FileNotFoundError), socket_path(self._directory) as path:
                    os.unlink(path)

    async def quiet(self) -> None:
        """Wait until every request is answered, so that the server can stop."""
        await self._quiet.wait()

    async def _converse(self, stream: trio.SocketStream) -> None:
        """Serve one connection until the client closes it."""
        try:
            async with stream:
                if _may_ask(stream):
                    await self._answer_all(stream)
        except trio.BrokenResourceError:
            return  # the client disconnected; its request has ended, or was cancelled
        except Exception:  # noqa: BLE001  # a bug here must not end the mount
            _log.exception("a control connection failed because of a bug")
        finally:
            self._places.release()

    async def _answer_all(self, stream: trio.SocketStream) -> None:
        """Answer the requests of a connection in order; stop after an invalid request."""
        lines = LineReader(stream)
        try:
            while True:
                with trio.move_on_after(CONTROL_IDLE_S_MAX) as idle:
                    line = await lines.next_line()
                if idle.cancelled_caught or not line:
                    return
                with self._owing():
                    await self._answer(stream, decode_request(line))
        except ControlError as exc:
            await stream.send_all(encode(_error(exc.kind, exc.message)))

    async def _answer(self, stream: trio.SocketStream, request: Request) -> None:
        """Handle one request: send its progress messages, then its answer.

        The handler of a command that is not bound finishes even if the client disconnects, because
        an interrupted flush is useless.
        """
        send, receive = trio.open_memory_channel[Message](CONTROL_EVENTS_MAX)

        def report(event: Message) -> None:
            # A slow client may miss progress messages, but never the result.
            with contextlib.suppress(trio.WouldBlock, trio.BrokenResourceError):
                send.send_nowait({"progress": event})

        answer: Message | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_forward, receive, stream)
            async with send, trio.open_nursery() as watched:
                if request.command in self._bound:
                    watched.start_soon(_cancel_at_end, stream, watched.cancel_scope)
                answer = await _carry_out(request, self._handlers, report)
                watched.cancel_scope.cancel()
        if answer is not None:
            await stream.send_all(encode(answer))

    @contextlib.contextmanager
    def _owing(self) -> Iterator[None]:
        """Count a request as unanswered for the duration of a context."""
        if self._answering == 0:
            self._quiet = trio.Event()
        self._answering += 1
        try:
            yield
        finally:
            self._answering -= 1
            if self._answering == 0:
                self._quiet.set()


def _listen(directory: Path) -> trio.socket.SocketType:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # bind(2) creates the file with the socket's mode, so other users can never open it.
        os.fchmod(listener.fileno(), stat.S_IRUSR | stat.S_IWUSR)
        with socket_path(directory) as path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listener.bind(path)
        listener.listen(socket.SOMAXCONN)
    except BaseException:
        listener.close()
        raise
    return trio.socket.from_stdlib_socket(listener)


async def _accept(listener: trio.socket.SocketType) -> trio.SocketStream:
    """Return the next connection; retry while the host is short of descriptors or memory."""
    while True:
        try:
            connection, _ = await listener.accept()
            return trio.SocketStream(connection)
        except OSError as exc:
            if exc.errno not in {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNABORTED}:
                raise
            _log.warning("cannot accept a control connection, will retry: %s", exc)
            await trio.sleep(_ACCEPT_RETRY_S)


def _may_ask(stream: trio.SocketStream) -> bool:
    """Return whether the peer is root or the user of this process."""
    raw = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _pid, uid, _gid = _UCRED.unpack(raw)
    if uid in {0, os.geteuid()}:
        return True
    _log.warning(
        "refused a control connection of user %d, who is neither root nor the user of the mount",
        uid,
    )
    return False


async def _cancel_at_end(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    """Cancel *scope* when the client disconnects; leave its next request unread."""
    try:
        if not await stream.socket.recv(1, socket.MSG_PEEK):
            scope.cancel()
    except OSError:
        scope.cancel()


async def _forward(receive: trio.MemoryReceiveChannel[Message], stream: trio.SocketStream) -> None:
    try:
        async for event in receive:
            await stream.send_all(encode(event))
    except trio.BrokenResourceError:
        receive.close()  # the connection is lost, so sending the reply will raise an error


async def _carry_out(request: Request, handlers: Mapping[str, Handler], report: Report) -> Message:
    handler = handlers.get(request.command)
    if handler is None:
        return _error("UsageError", f"unknown control command {request.command!r}")
    try:
        return {"result": await handler(request.arguments, report)}
    except S3fsError as exc:
        return _error(type(exc).__name__, exc.message)
    except Exception:  # noqa: BLE001  # a bug in a command must not end the mount
        _log.exception("control command %r failed because of a bug", request.command)
        return _error("ControlError", f"{request.command} failed inside the mount; see its log")


def _error(kind: str, message: str) -> Message:
    return {"error": {"kind": kind, "message": message}}
