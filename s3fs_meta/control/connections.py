"""The open connections of a control server; silent clients are disconnected in favour of new ones.

Owns: the number of open connections, the phase of each, and the choice of the connection to close
for a new client. Does not know: messages, handlers.
Keeps: the connection of a handler that must not be interrupted is never closed for a new client.
Tasks: one task accepts connections and calls ``ControlConnections.add``; one task per connection.
"""

import enum
import math
from typing import NamedTuple

import trio

from s3fs_meta.control.limits import (
    CONTROL_CONNECTIONS_MAX,
    CONTROL_IDLE_S_MAX,
    CONTROL_QUEUED_MAX,
    CONTROL_REQUESTS_MAX,
    CONTROL_SILENCE_S_MAX,
)


class ControlBounds(NamedTuple):
    """The bounds of a control server; ``control.limits`` gives the reasons."""

    connections: int = CONTROL_CONNECTIONS_MAX
    requests: int = CONTROL_REQUESTS_MAX  # maximum number of requests handled concurrently
    queued: int = CONTROL_QUEUED_MAX  # maximum number of requests in the queue
    idle_s: float = CONTROL_IDLE_S_MAX  # time for sending a request, and for reading an answer
    # time of silence after which a client may be disconnected for a new one
    silence_s: float = CONTROL_SILENCE_S_MAX


class Phase(enum.Enum):
    """The activity that the server waits for on a connection."""

    CLIENT = "the client must send a request or read its answer"
    EVENT = "a handler waits for an event"
    HANDLER = "a handler runs that must not be interrupted, or a request waits in the queue"


class ControlConnection:
    """One connection between a client and the control server."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.scope = trio.CancelScope()  # the connection is closed when the scope is cancelled
        self._phase = Phase.CLIENT
        self._phase_since_s = trio.current_time()
        self._sends_since_s: float | None = None  # start of the unfinished send, if there is one

    def enter(self, phase: Phase) -> None:
        """Record the phase of the connection. Never yields to other tasks."""
        self._phase = phase
        self._phase_since_s = trio.current_time()
        self.scope.deadline = math.inf

    async def send(self, data: bytes) -> None:
        """Send a message; wait while the client does not read earlier messages.

        Raises:
            trio.BrokenResourceError: the client has disconnected.
        """
        self._sends_since_s = trio.current_time()
        try:
            await self.stream.send_all(data)
        finally:
            self._sends_since_s = None

    def close_if_silent(self, limit_s: float) -> None:
        """Close the connection as soon as its client has been silent for *limit_s*."""
        since_s = self._silent_since_s
        if since_s is not None:
            self.scope.deadline = since_s + limit_s

    @property
    def is_closing(self) -> bool:
        """Return whether the connection must be closed before it handles another request."""
        return self.scope.cancel_called

    @property
    def closing_key(self) -> tuple[bool, float] | None:
        """Return the sort key by which connections are closed; the smallest key is closed first.

        The first item is True if the client waits for an event, so silent clients are disconnected
        before waiting clients. The second item is the time at which the silence or the wait began.
        The result is None while a handler runs, because its connection stays open.
        """
        if self._phase is Phase.HANDLER:
            return None
        since_s = self._silent_since_s
        return (True, self._phase_since_s) if since_s is None else (False, since_s)

    @property
    def _silent_since_s(self) -> float | None:
        """Return the time since which the server waits for the client; None if it does not wait."""
        if self._phase is Phase.HANDLER:
            return None
        if self._sends_since_s is not None:
            return self._sends_since_s
        return self._phase_since_s if self._phase is Phase.CLIENT else None


class ControlConnections:
    """The open connections of one control server."""

    def __init__(self, bounds: ControlBounds) -> None:
        self._bounds = bounds
        self._open: set[ControlConnection] = set()
        self._changed = trio.Event()

    async def add(self, stream: trio.SocketStream) -> ControlConnection:
        """Return a connection for *stream*; wait while too many connections are open.

        At the maximum, one connection is closed: that of the client that has been silent longest,
        or, without silent clients, that has waited longest for an event. It is closed only after
        ``silence_s``, so that a new client has time to send its request.
        """
        try:
            while len(self._open) >= self._bounds.connections:
                with trio.move_on_at(self._make_room()):
                    await self._changed.wait()
        except BaseException:
            stream.socket.close()
            raise
        connection = ControlConnection(stream)
        self._open.add(connection)
        return connection

    def remove(self, connection: ControlConnection) -> None:
        """Remove a closed connection. Never yields to other tasks."""
        self._open.discard(connection)
        self._report_change()

    def enter(self, connection: ControlConnection, phase: Phase) -> None:
        """Record the phase of a connection. Never yields to other tasks."""
        connection.enter(phase)
        self._report_change()

    def close_silent(self, limit_s: float) -> None:
        """Close each connection once its client has been silent for *limit_s*."""
        for connection in self._open:
            connection.close_if_silent(limit_s)

    def _make_room(self) -> float:
        """Close a connection if possible; return the time at which to try again."""
        keys = {one: key for one in self._open if (key := one.closing_key) is not None}
        if not keys or any(one.is_closing for one in keys):
            return math.inf  # wait until a connection changes
        first = min(keys, key=lambda one: keys[one])
        allowed_s = keys[first][1] + self._bounds.silence_s
        if trio.current_time() < allowed_s:
            return allowed_s
        first.scope.cancel()
        return math.inf

    def _report_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
