"""Tests of synchronous control requests, which need no event loop."""

import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from s3fs_meta.control import client, plain_call
from s3fs_meta.control.protocol import PROBE, Message, Report
from s3fs_meta.control.server import ControlServer, RequestKind
from s3fs_meta.errors import ControlError, NotPermittedError
from s3fs_meta.mount_errors import NotMountedError, SilentDaemonError


async def test_synchronous_control_call_ignores_progress_and_returns_the_result(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    async def handler(arguments: Message, report: Report) -> Message:
        report({"what": "half", "done": 1, "total": 2})
        return {"twice": arguments["number"] * 2}

    await nursery.start(ControlServer(tmp_path, {"double": handler}).serve)

    found = await trio.to_thread.run_sync(plain_call.call, tmp_path, "double", {"number": 21})

    assert found == {"twice": 42}


async def test_synchronous_control_call_raises_the_error_class_of_the_daemon(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """The caller raises an error of the same class as the daemon, so the exit status is correct."""

    async def refuse(_arguments: Message, _report: Report) -> Message:
        raise NotPermittedError("a word")

    await nursery.start(ControlServer(tmp_path, {"ask": refuse}).serve)

    with pytest.raises(ControlError, match="a word") as caught:
        await trio.to_thread.run_sync(plain_call.call, tmp_path, "ask", {})
    assert caught.value.kind == "NotPermittedError"


def test_synchronous_control_call_without_a_listening_daemon_fails(tmp_path: Path) -> None:
    """If the state directory, socket or listener is missing, the call raises NotMountedError."""
    for directory in (tmp_path / "missing", tmp_path):
        with pytest.raises(NotMountedError):
            plain_call.call(directory, "status", {})
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "control.sock"))
    with pytest.raises(NotMountedError):
        plain_call.call(tmp_path, "status", {})


@pytest.fixture(params=[b"", b'{"progress": {}}\n', b'{"resu'])
def dying_mount(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Yield the directory of a server that disconnects before its answer is complete."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen()

        def die() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(request.param)

        thread = threading.Thread(target=die)
        thread.start()
        yield tmp_path
        thread.join()


def test_synchronous_control_call_to_a_dying_daemon_raises_control_error(dying_mount: Path) -> None:
    """A connection closed without a result raises ControlError."""
    with pytest.raises(ControlError):
        plain_call.call(dying_mount, "flush", {})


@pytest.fixture(params=[0, 5], ids=["full queue", "no answer"])
def stopped_mount(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Yield the directory of a stopped daemon, which accepts no connection."""
    path = str(tmp_path / "control.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(request.param)
        first.connect(path)
        yield tmp_path


async def test_stopped_daemon_causes_an_error_instead_of_an_endless_wait(
    stopped_mount: Path,
) -> None:
    """The synchronous client and the asynchronous client stop waiting after a limit."""
    soon = plain_call.Patience(probe_s=0.01, answer_s=0.01)

    with pytest.raises(SilentDaemonError, match="did not answer"):
        await trio.to_thread.run_sync(plain_call.call, stopped_mount, "remove", {}, soon)
    with pytest.raises(SilentDaemonError, match="did not answer"):
        await client.call(stopped_mount, "flush", patience=soon)


async def test_slow_request_to_a_daemon_that_answers_other_requests_succeeds(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """A request may take hours, as long as the daemon answers health checks in the meantime."""
    is_checked = trio.Event()

    async def slow(_arguments: Message, _report: Report) -> Message:
        await is_checked.wait()
        return {"done": True}

    async def status(_arguments: Message, _report: Report) -> Message:
        is_checked.set()
        return {}

    server = ControlServer(
        tmp_path, {"slow": slow, PROBE: status}, kinds={PROBE: RequestKind.PROMPT}
    )
    await nursery.start(server.serve)
    often = plain_call.Patience(probe_s=0.01)

    call = partial(plain_call.call, tmp_path, "slow", {}, often)
    assert await trio.to_thread.run_sync(call) == {"done": True}
    is_checked = trio.Event()
    assert await client.call(tmp_path, "slow", patience=often) == {"done": True}
