"""Tests of the server of the control socket, through real sockets."""

import contextlib
import errno
import json
import os
import select
import socket
import stat
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from s3fs_meta.console.boundary import text_of
from s3fs_meta.console.exits import ExitStatus, status_of
from s3fs_meta.control import client
from s3fs_meta.control.connections import ControlBounds
from s3fs_meta.control.limits import CONTROL_EVENTS_MAX, CONTROL_REQUESTS_MAX
from s3fs_meta.control.protocol import SOCKET_NAME, Message, Report, socket_path
from s3fs_meta.control.server import ControlServer, RequestKind
from s3fs_meta.errors import ControlError, NoSpaceLeftError, SettingsError
from s3fs_meta.limits import CONTROL_MESSAGE_BYTES_MAX
from tests.faults import raising
from tests.polling import WAIT_S_MAX, until


class Commands:
    """Command handlers with events, by which a test controls and observes the handlers."""

    def __init__(self) -> None:
        self.started = trio.Event()
        self.entered = 0
        self.gate = trio.Event()
        self.finished: list[str] = []
        self.cancelled = trio.Event()

    async def echo(self, arguments: Message, _report: Report) -> Message:
        """Return the arguments of the request."""
        return dict(arguments)

    async def count(self, _arguments: Message, report: Report) -> Message:
        """Send twice as many progress events as fit into the queue."""
        for number in range(2 * CONTROL_EVENTS_MAX):
            report({"done": number})
        return {"last": 2 * CONTROL_EVENTS_MAX}

    async def fail(self, arguments: Message, _report: Report) -> Message:
        """Raise an unexpected error if the request asks for a bug, otherwise an expected error."""
        if arguments.get("bug"):
            raise RuntimeError("oops")
        if arguments.get("shortage"):
            raise RuntimeError("can't start new thread")
        raise NoSpaceLeftError("disk")

    async def wait(self, _arguments: Message, _report: Report) -> Message:
        """Wait until the test sets the event ``gate``."""
        self.entered += 1
        self.started.set()
        await self.gate.wait()
        self.finished.append("wait")
        return {}

    async def hold(self, _arguments: Message, report: Report) -> Message:
        """Wait until the test sets ``gate``; record a cancellation that arrives earlier."""
        try:
            report({"held": 1})
            await self.gate.wait()
        except trio.Cancelled:
            self.cancelled.set()
            raise
        return {}

    async def watch(self, arguments: Message, report: Report) -> Message:
        """Do the same as ``hold``, but as a command of a different kind."""
        return await self.hold(arguments, report)

    async def tell(self, _arguments: Message, report: Report) -> Message:
        """Wait until the test sets ``gate``, report progress, and record that the handler ended."""
        self.started.set()
        await self.gate.wait()
        for number in range(3):
            report({"done": number})
            await trio.testing.wait_all_tasks_blocked()
        self.finished.append("tell")
        return {}

    async def big(self, _arguments: Message, _report: Report) -> Message:
        """Return a result that exceeds the size limit of a message."""
        return {"text": "x" * CONTROL_MESSAGE_BYTES_MAX}

    async def large(self, _arguments: Message, _report: Report) -> Message:
        """Return a result that does not fit into the buffer of a socket."""
        return {"text": "x" * (CONTROL_MESSAGE_BYTES_MAX - 100)}


@pytest.fixture
def commands() -> Commands:
    """Return the command handlers of one test."""
    return Commands()


@pytest.fixture
async def directory(
    tmp_path: Path, commands: Commands, nursery: trio.Nursery
) -> AsyncIterator[Path]:
    """Run a server in a directory whose path is too long for a socket address."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    await nursery.start(_server(deep, commands).serve)
    yield deep
    nursery.cancel_scope.cancel()


def _server(
    directory: Path, commands: Commands, bounds: ControlBounds | None = None
) -> ControlServer:
    names = ("echo", "count", "fail", "wait", "hold", "watch", "tell", "big", "large")
    handlers = {name: getattr(commands, name) for name in names}
    kinds = {
        "echo": RequestKind.PROMPT,
        "hold": RequestKind.BOUND,
        "watch": RequestKind.WAITING,
    }
    return ControlServer(directory, handlers, kinds=kinds, bounds=bounds)


async def _raw(directory: Path) -> trio.SocketStream:
    connection = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    with socket_path(directory) as path:
        await connection.connect(path)
    return trio.SocketStream(connection)


async def _one_line(stream: trio.SocketStream) -> Any:
    return json.loads(await stream.receive_some(CONTROL_MESSAGE_BYTES_MAX))


async def test_result_of_a_control_handler_is_returned_to_the_client(directory: Path) -> None:
    assert await client.call(directory, "echo", {"a": [1, "ü"]}) == {"a": [1, "ü"]}


async def test_control_socket_has_mode_0600(directory: Path) -> None:
    """Only the owner of the control socket may connect."""
    mode = (directory / "control.sock").stat().st_mode

    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def _ask_as_other_user(directory: Path) -> int:
    """Connect as another user; return 0 if the server closes the connection."""
    with warnings.catch_warnings():
        # Python warns of a fork with threads; this child process makes only system calls.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setuid(65534)
            with socket_path(directory) as path:
                asking = socket.socket(socket.AF_UNIX)
                asking.connect(path)
            status = 0 if asking.recv(1) == b"" else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_control_server_disconnects_a_client_of_another_user(directory: Path) -> None:
    """The server checks the user of a client, even if any user can access the socket file."""
    for path in (directory, *directory.parents):
        if path.stat().st_mode & 0o055 != 0o055:
            path.chmod(0o755)
    (directory / "control.sock").chmod(0o666)

    assert await trio.to_thread.run_sync(_ask_as_other_user, directory) == 0


async def test_progress_events_arrive_in_order_and_never_block_the_handler(directory: Path) -> None:
    """A slow client may miss progress events, but it always receives the result."""
    events: list[Message] = []

    result = await client.call(directory, "count", report=events.append)

    assert result == {"last": 2 * CONTROL_EVENTS_MAX}
    assert 1 <= len(events) <= 2 * CONTROL_EVENTS_MAX
    assert events == sorted(events, key=lambda event: int(event["done"]))


async def test_error_of_a_control_handler_reaches_the_client_unchanged(directory: Path) -> None:
    with pytest.raises(ControlError, match="no space left: disk") as caught:
        await client.call(directory, "fail")

    assert caught.value.kind == "NoSpaceLeftError"


async def test_exception_in_a_control_handler_does_not_stop_the_server(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If a handler has a bug, the error is logged, and the client receives a one-sentence error."""
    with pytest.raises(ControlError, match="see its log"):
        await client.call(directory, "fail", {"bug": True})

    assert "RuntimeError: oops" in caplog.text
    assert await client.call(directory, "echo", {}) == {}


async def test_control_command_that_cannot_start_a_thread_names_the_limit(directory: Path) -> None:
    with pytest.raises(ControlError, match="no thread can be started") as caught:
        await client.call(directory, "fail", {"shortage": True})
    assert caught.value.kind == "ThreadShortageError"


async def test_error_about_an_unknown_control_command_names_the_command(directory: Path) -> None:
    """An older daemon answers the unknown command of a newer client with an error."""
    with pytest.raises(ControlError, match="unknown control command 'levitate'"):
        await client.call(directory, "levitate")


@pytest.mark.parametrize("line", [b"{", b"[]", b'"x"', b'{"command":1}', b"\xff"])
async def test_client_that_sends_an_invalid_request_receives_an_error_and_is_disconnected(
    directory: Path, line: bytes
) -> None:
    """The server answers an invalid request with an error, and closes the connection."""
    async with await _raw(directory) as stream:
        await stream.send_all(line + b"\n")

        assert (await _one_line(stream))["error"]["kind"] == "ControlError"
        assert await stream.receive_some(1) == b""


async def test_control_client_that_sends_an_endless_line_is_disconnected(directory: Path) -> None:
    """A request without a newline is refused when it reaches the size limit of a message."""
    async with await _raw(directory) as stream:
        await stream.send_all(b"x" * (CONTROL_MESSAGE_BYTES_MAX + 1))

        assert "too long" in (await _one_line(stream))["error"]["message"]


async def test_control_result_above_the_message_size_limit_is_an_error(directory: Path) -> None:
    with pytest.raises(ControlError, match="too long"):
        await client.call(directory, "big")


async def test_control_requests_on_one_connection_are_answered_in_order(directory: Path) -> None:
    async with await _raw(directory) as stream:
        for number in range(2):
            await stream.send_all(
                json.dumps({"command": "echo", "arguments": {"n": number}}).encode() + b"\n"
            )
            assert await _one_line(stream) == {"result": {"n": number}}


async def test_control_command_continues_after_its_client_disconnects(
    directory: Path, commands: Commands
) -> None:
    async with await _raw(directory) as stream:
        await stream.send_all(b'{"command":"wait"}\n')
        await trio.testing.wait_all_tasks_blocked()
    commands.gate.set()
    await trio.testing.wait_all_tasks_blocked()

    assert commands.finished == ["wait"]


async def test_silent_control_client_is_disconnected(
    directory: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A client that sends no request is disconnected after a timeout."""
    async with await _raw(directory) as stream:
        assert await stream.receive_some(1) == b""


async def test_control_request_above_the_limit_waits_until_another_request_ends(
    directory: Path, commands: Commands
) -> None:
    """A request that needs little time, such as status, does not wait for other requests."""
    async with trio.open_nursery() as nursery:
        for _ in range(CONTROL_REQUESTS_MAX + 3):
            nursery.start_soon(client.call, directory, "wait")
        await until(lambda: commands.entered == CONTROL_REQUESTS_MAX)
        assert await client.call(directory, "echo", {"a": 1}) == {"a": 1}
        assert commands.entered == CONTROL_REQUESTS_MAX
        commands.gate.set()

    assert len(commands.finished) == CONTROL_REQUESTS_MAX + 3


async def test_control_request_whose_client_disconnects_before_its_turn_is_not_handled(
    tmp_path: Path, commands: Commands, nursery: trio.Nursery
) -> None:
    await nursery.start(_server(tmp_path, commands, ControlBounds(requests=1)).serve)
    nursery.start_soon(client.call, tmp_path, "wait")
    await commands.started.wait()

    async with await _sent(tmp_path, b'{"command":"tell"}\n') as stream:
        await stream.send_eof()
        assert await stream.receive_some(1) == b""  # The server has dropped the request.

    commands.gate.set()
    await client.call(tmp_path, "wait")
    assert commands.finished == ["wait", "wait"]
    nursery.cancel_scope.cancel()


async def test_waiting_control_requests_leave_connections_for_quick_requests(
    tmp_path: Path, commands: Commands, nursery: trio.Nursery
) -> None:
    bounds = ControlBounds(connections=5, requests=1, queued=2)
    refused: list[str] = []

    async def wait() -> None:
        try:
            await client.call(tmp_path, "wait")
        except ControlError as exc:
            refused.append(f"{exc.kind}: {exc.message}")

    await nursery.start(_server(tmp_path, commands, bounds).serve)
    async with trio.open_nursery() as clients:
        for _ in range(2 * bounds.connections):
            clients.start_soon(wait)
        await until(lambda: len(refused) == 2 * bounds.connections - 3)
        assert await client.call(tmp_path, "echo", {"a": 1}) == {"a": 1}
        commands.gate.set()

    assert set(refused) == {"BusyError: the mount has too many requests; try again later"}
    assert len(commands.finished) == 3
    nursery.cancel_scope.cancel()


# --- silent clients ----------------------------------------------------------------------------

_FEW: Final = ControlBounds(connections=4, requests=2, idle_s=3600.0, silence_s=0.0)


async def _sent(directory: Path, words: bytes) -> trio.SocketStream:
    """Return the connection of a client that has sent some bytes."""
    stream = await _raw(directory)
    await stream.send_all(words)
    return stream


def _is_closed(stream: trio.SocketStream) -> bool:
    """Return whether the server has closed a connection, without reading from it."""
    poll = select.poll()
    poll.register(stream.socket.fileno(), 0)
    return any(event & select.POLLHUP for _fd, event in poll.poll(0))


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b'{"command":',
        b'{"command":"echo"}\n',
        b'{"command":"large"}\n',
        b'{"command":"watch"}\n',
    ],
)
async def test_silent_control_client_is_disconnected_to_make_room_for_another_client(
    tmp_path: Path, commands: Commands, nursery: trio.Nursery, words: bytes
) -> None:
    """Clients that stop before, during or after a request do not block other clients."""
    await nursery.start(_server(tmp_path, commands, _FEW).serve)
    async with contextlib.AsyncExitStack() as silent:
        for _ in range(2 * _FEW.connections):
            await silent.enter_async_context(await _sent(tmp_path, words))

        for _ in range(2 * _FEW.connections):
            assert await client.call(tmp_path, "echo", {"a": 1}) == {"a": 1}
    nursery.cancel_scope.cancel()


async def test_running_control_request_is_not_cancelled_to_make_room_for_another_client(
    tmp_path: Path, commands: Commands, nursery: trio.Nursery
) -> None:
    await nursery.start(_server(tmp_path, commands, _FEW).serve)
    async with contextlib.AsyncExitStack() as clients:
        waiting = await clients.enter_async_context(await _sent(tmp_path, b'{"command":"wait"}\n'))
        await commands.started.wait()
        for _ in range(2 * _FEW.connections):
            await clients.enter_async_context(await _sent(tmp_path, b""))
            await client.call(tmp_path, "echo")
        commands.gate.set()

        assert await _one_line(waiting) == {"result": {}}
    nursery.cancel_scope.cancel()


async def test_control_client_that_does_not_read_its_answer_is_disconnected(
    tmp_path: Path, commands: Commands, nursery: trio.Nursery
) -> None:
    await nursery.start(_server(tmp_path, commands, ControlBounds(idle_s=0.01)).serve)
    async with await _sent(tmp_path, b'{"command":"large"}\n') as stream:
        await until(lambda: _is_closed(stream))
    nursery.cancel_scope.cancel()


async def test_silent_control_clients_do_not_delay_the_end_of_the_server(
    tmp_path: Path, commands: Commands, nursery: trio.Nursery, mock_clock: trio.testing.MockClock
) -> None:
    """If a client reads no answer, its timeout begins when the server sends the answer."""
    control = _server(tmp_path, commands)
    await nursery.start(control.serve)
    async with contextlib.AsyncExitStack() as clients:
        silent = [
            await clients.enter_async_context(await _sent(tmp_path, b'{"command":"large"}\n'))
            for _ in range(5)
        ]
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(3.0)

        await control.quiet(2.0)  # The clock stands still, so the call must not wait.

        assert all(map(_is_closed, silent))
    nursery.cancel_scope.cancel()


async def test_socket_file_of_a_killed_daemon_is_replaced(tmp_path: Path) -> None:
    """The server replaces the socket file of a killed daemon, and removes its own when it stops."""
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "control.sock"))
    left.close()

    async with trio.open_nursery() as nursery:
        await nursery.start(ControlServer(tmp_path, {}).serve)
        with pytest.raises(ControlError, match="unknown control command"):
            await client.call(tmp_path, "echo")
        nursery.cancel_scope.cancel()

    assert os.listdir(tmp_path) == []


async def test_control_socket_that_cannot_be_replaced_is_named(tmp_path: Path) -> None:
    (tmp_path / SOCKET_NAME).mkdir()

    with pytest.raises(SettingsError) as caught:
        await ControlServer(tmp_path, {}).serve()

    wanted = f"cannot create the control socket '{tmp_path}/{SOCKET_NAME}': Is a directory"
    assert caught.value.message == wanted


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
async def test_failure_of_the_disk_while_the_control_socket_is_created_is_an_os_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The error names the socket, and not the path below /proc/self/fd that the call has."""
    failing = raising(OSError(code, os.strerror(code), "/proc/self/fd/3/control.sock"))
    monkeypatch.setattr(os, "unlink", failing)

    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        await ControlServer(tmp_path, {}).serve()

    assert text_of(caught.value) == f"{tmp_path / SOCKET_NAME}: {os.strerror(code)}"
    assert status_of(caught.value) is ExitStatus.LOCAL


async def test_control_socket_that_cannot_be_removed_does_not_fail_the_mount(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(ControlServer(tmp_path, {}).serve)
        (tmp_path / SOCKET_NAME).unlink()
        (tmp_path / SOCKET_NAME).mkdir()
        nursery.cancel_scope.cancel()

    assert f"{tmp_path}/{SOCKET_NAME} was not removed: Is a directory" in caplog.text


async def test_control_server_stops_only_after_its_answer_is_sent(
    tmp_path: Path, commands: Commands
) -> None:
    results: list[dict[str, Any]] = []

    async def ask() -> None:
        results.append(await client.call(tmp_path, "wait"))

    async with trio.open_nursery() as clients, trio.open_nursery() as nursery:
        control = ControlServer(tmp_path, {"wait": commands.wait})
        await nursery.start(control.serve)
        await control.quiet(3600.0)
        clients.start_soon(ask)
        await commands.started.wait()
        commands.gate.set()
        await control.quiet(3600.0)
        nursery.cancel_scope.cancel()

    assert results == [{}]


async def test_control_command_bound_to_its_client_is_cancelled_when_the_client_disconnects(
    directory: Path, commands: Commands
) -> None:
    """If a client disconnects, the handler of a command that is bound to this client is cancelled.

    A client that stays connected receives the answer and may send another request.
    """
    stream = await _raw(directory)
    await stream.send_all(b'{"command": "hold"}\n')
    assert await _one_line(stream) == {"progress": {"held": 1}}
    await stream.aclose()
    with trio.fail_after(WAIT_S_MAX):
        await commands.cancelled.wait()

    commands.gate.set()
    async with await _raw(directory) as stream:
        await stream.send_all(b'{"command": "hold"}\n{"command": "echo"}\n')
        received = b""
        while received.count(b"\n") < 3:
            received += await stream.receive_some(1000)
    assert b'{"result":{}}' in received


async def test_control_command_with_progress_reports_continues_without_its_client(
    directory: Path, commands: Commands
) -> None:
    stream = await _raw(directory)
    await stream.send_all(b'{"command": "tell"}\n')
    await commands.started.wait()
    await stream.aclose()
    commands.gate.set()
    await until(lambda: commands.finished)
