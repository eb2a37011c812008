"""The server side of a mount's control socket.

Owns: accepting connections, checking the peer's user, sending one answer per request. Does not
know: the effects of commands, the choice of a connection to close (``connections``).
Keeps: a client that closes the connection, sends garbage or stops reading does not affect other
clients. An exception in a handler becomes an error message and never ends the mount.
Tasks: one ``ControlServer.serve`` per mount, and one per connection.
"""

import contextlib
import enum
import errno
import logging
import os
import socket
import stat
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import trio

from s3fs_meta.background_task import lacks_thread
from s3fs_meta.control.connections import (
    ControlBounds,
    ControlConnection,
    ControlConnections,
    Phase,
)
from s3fs_meta.control.limits import CONTROL_EVENTS_MAX
from s3fs_meta.control.lines import LineReader
from s3fs_meta.control.protocol import (
    SOCKET_NAME,
    Handler,
    Message,
    Report,
    Request,
    decode_request,
    encode,
    socket_path,
)
from s3fs_meta.errors import (
    BusyError,
    ControlError,
    S3fsError,
    SettingsError,
    ThreadShortageError,
)

_log = logging.getLogger(__name__)

# Errors of replacing the socket if another entry has its name.
_NAME_TAKEN = frozenset({errno.EISDIR, errno.EEXIST, errno.EADDRINUSE})

_UCRED = struct.Struct("3i")  # pid, uid and gid, as returned by SO_PEERCRED: unix(7)
_ACCEPT_RETRY_S = 1.0


class RequestKind(enum.Enum):
    """How the control server treats the requests of a command."""

    # The request waits in the queue, and is refused if the queue is full.
    # If the client disconnects, a queued request is dropped, but a running request finishes,
    # because an interrupted flush is useless.
    ORDINARY = "ordinary"
    # Like ORDINARY, but a running request is also cancelled if the client disconnects.
    BOUND = "bound"
    # The request is handled immediately, not in the queue, because it takes little time.
    PROMPT = "prompt"
    # The request waits for an event, not in the queue. A disconnection cancels the request.
    # The server may also cancel the request to make room for another client.
    WAITING = "waiting"


_CANCELLED_AT_END: Final = frozenset({RequestKind.BOUND, RequestKind.WAITING})
_ALL_ORDINARY: Final[Mapping[str, RequestKind]] = MappingProxyType({})


class ControlServer:
    """A server that answers the control requests to one mount."""

    def __init__(
        self,
        directory: Path,
        handlers: Mapping[str, Handler],
        *,
        kinds: Mapping[str, RequestKind] = _ALL_ORDINARY,
        bounds: ControlBounds | None = None,
    ) -> None:
        """Create a server that does not listen yet.

        Args:
            directory: the state directory; the caller holds its lock, so an existing socket
                is left over from an earlier mount.
            handlers: the handler of each command, by the command's name.
            kinds: the kind of each command that is not ordinary.
            bounds: the bounds of the server; None for the default bounds.
        """
        self._directory = directory
        self._handlers = handlers
        self._kinds = kinds
        self._bounds = bounds or ControlBounds()
        self._connections = ControlConnections(self._bounds)
        self._turns = trio.Semaphore(self._bounds.requests)
        self._answering = 0
        self._quiet = trio.Event()
        self._quiet.set()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer requests until cancelled, then remove the socket.

        Raises:
            SettingsError: another entry, which cannot be removed, has the name of the socket.
            OSError: the socket cannot be created for another reason, such as a full disk.

        Always yields to other tasks. Takes no locks.
        """
        with _listen(self._directory) as listener:
            try:
                async with trio.open_nursery() as nursery:
                    task_status.started()
                    while True:
                        connection = await self._connections.add(await _accept(listener))
                        nursery.start_soon(self._converse, connection)
            finally:
                _remove_socket(self._directory)

    async def quiet(self, limit_s: float) -> None:
        """Wait until every request is answered, so that the server can stop.

        Args:
            limit_s: time limit. A client that has already been silent for that time is disconnected
                immediately.
        """
        self._connections.close_silent(limit_s)
        with trio.move_on_after(limit_s):
            await self._quiet.wait()

    async def _converse(self, connection: ControlConnection) -> None:
        """Serve one connection until its client closes it, or it is closed for a new client."""
        try:
            with connection.scope:
                async with connection.stream:
                    if _may_ask(connection.stream):
                        await self._answer_all(connection)
        except trio.BrokenResourceError:
            return  # the client has disconnected, and its request has ended or was cancelled
        except Exception:  # noqa: BLE001  # a bug here must not end the mount
            _log.exception("a control connection failed because of a bug")
        finally:
            self._connections.remove(connection)

    async def _answer_all(self, connection: ControlConnection) -> None:
        """Answer the requests of a connection in order; stop after an invalid request."""
        lines = LineReader(connection.stream)
        try:
            while True:
                with trio.move_on_after(self._bounds.idle_s) as idle:
                    line = await lines.next_line()
                if idle.cancelled_caught or not line or connection.is_closing:
                    return
                with self._owing():
                    if not await self._answer(connection, decode_request(line)):
                        return
        except ControlError as exc:
            with trio.move_on_after(self._bounds.idle_s):
                await connection.send(encode(_error(exc.kind, exc.message)))

    async def _answer(self, connection: ControlConnection, request: Request) -> bool:
        """Handle one request: send its progress messages, then its answer.

        Returns:
            False if the client did not read the messages in time; then close the connection.
        """
        send, receive = trio.open_memory_channel[Message](CONTROL_EVENTS_MAX)

        def report(event: Message) -> None:
            # A slow client may miss progress messages, but never the result.
            with contextlib.suppress(trio.WouldBlock, trio.BrokenResourceError):
                send.send_nowait({"progress": event})

        with trio.CancelScope() as reading:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_forward, receive, connection)
                async with send:
                    answer = await self._in_turn(connection, request, report)
                self._connections.enter(connection, Phase.CLIENT)
                reading.deadline = trio.current_time() + self._bounds.idle_s
            if answer is not None:
                await connection.send(encode(answer))
        return not reading.cancelled_caught

    async def _in_turn(
        self, connection: ControlConnection, request: Request, report: Report
    ) -> Message | None:
        """Return the answer to a request; None if the client disconnected before it was handled."""
        kind = self._kinds.get(request.command, RequestKind.ORDINARY)
        waits = kind is RequestKind.WAITING
        self._connections.enter(connection, Phase.EVENT if waits else Phase.HANDLER)
        if waits or kind is RequestKind.PROMPT:
            return await self._handle(connection, request, report)
        if self._turns.statistics().tasks_waiting >= self._bounds.queued:
            return _error(BusyError.__name__, "the mount has too many requests; try again later")
        if not await self._take_turn(connection.stream):
            return None
        try:
            return await self._handle(connection, request, report)
        finally:
            self._turns.release()

    async def _take_turn(self, stream: trio.SocketStream) -> bool:
        """Wait until the request may be handled; return False if the client disconnects first."""
        with contextlib.suppress(trio.WouldBlock):
            self._turns.acquire_nowait()
            return True
        is_taken = False
        async with trio.open_nursery() as watched:
            watched.start_soon(_cancel_at_end, stream, watched.cancel_scope)
            await self._turns.acquire()
            is_taken = True
            watched.cancel_scope.cancel()
        return is_taken

    async def _handle(
        self, connection: ControlConnection, request: Request, report: Report
    ) -> Message | None:
        """Return the answer to a request; None if the client's disconnection cancelled it."""
        answer: Message | None = None
        async with trio.open_nursery() as watched:
            if self._kinds.get(request.command) in _CANCELLED_AT_END:
                watched.start_soon(_cancel_at_end, connection.stream, watched.cancel_scope)
            answer = await _carry_out(request, self._handlers, report)
            watched.cancel_scope.cancel()
        return answer

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
    """Return a socket that listens in the state directory.

    Raises:
        SettingsError: another entry, which cannot be removed, has the name of the socket.
        OSError: the socket cannot be created for another reason, such as a full disk.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # bind(2) creates the file with the socket's mode, so other users can never open it.
        os.fchmod(listener.fileno(), stat.S_IRUSR | stat.S_IWUSR)
        with socket_path(directory) as path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listener.bind(path)
        listener.listen(socket.SOMAXCONN)
    except OSError as exc:
        listener.close()
        where = str(directory / SOCKET_NAME)
        if exc.errno not in _NAME_TAKEN:  # exc may name a path below /proc/self/fd
            raise OSError(exc.errno, exc.strerror, where) from exc
        raise SettingsError(f"cannot create the control socket {where!r}: {exc.strerror}") from exc
    return trio.socket.from_stdlib_socket(listener)


def _remove_socket(directory: Path) -> None:
    """Remove the socket of a server that has stopped; a failure does not fail the mount."""
    try:
        with contextlib.suppress(FileNotFoundError), socket_path(directory) as path:
            os.unlink(path)
    except OSError as exc:
        where = directory / SOCKET_NAME
        _log.warning("the control socket %s was not removed: %s", where, exc.strerror)


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
    """Cancel *scope* when the client disconnects; do not consume the client's next request."""
    try:
        if not await stream.socket.recv(1, socket.MSG_PEEK):
            scope.cancel()
    except OSError:
        scope.cancel()


async def _forward(
    receive: trio.MemoryReceiveChannel[Message], connection: ControlConnection
) -> None:
    try:
        async for event in receive:
            await connection.send(encode(event))
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
    except Exception as exc:  # noqa: BLE001  # a bug in a command must not end the mount
        if lacks_thread(exc):
            shortage = ThreadShortageError()
            return _error(type(shortage).__name__, shortage.message)
        _log.exception("control command %r failed because of a bug", request.command)
        return _error("ControlError", f"{request.command} failed inside the mount; see its log")


def _error(kind: str, message: str) -> Message:
    return {"error": {"kind": kind, "message": message}}
