"""Tests of messages to a service manager, read from a real socket."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from s3fs_meta.mount import process
from s3fs_meta.mount.limits import SUPERVISED_CHARS_MAX, SUPERVISED_STATUS_S
from s3fs_meta.mount.supervisor import SupervisedFront, Supervisor, status_text, watchdog_s
from tests.tasks import running

IDLE = "serving; everything is in the bucket"


def figures(
    state: str = "serving",
    why: str = "",
    *,
    pending_bytes: int = 0,
    age_s: float = 0,
    error: str = "",
) -> dict[str, Any]:
    """Return statistics of a mount for the status text."""
    return {
        "state": state,
        "why": why,
        "offline": "",
        "upload": {"pending_bytes": pending_bytes, "last_error": error},
        "chain": {"unshipped_age_s": age_s, "last_error": ""},
        "kernel": {"age_s": 0.0},
    }


class Manager:
    """A service manager with its socket and the received messages."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.shown = figures()

    def supervisor(self) -> Supervisor:
        """Return a supervisor that reports the current statistics."""
        return Supervisor(lambda: self.shown)

    def received(self) -> list[list[str]]:
        """Return the messages since the last call, as lines."""
        found = []
        while True:
            try:
                found.append(self._listener.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return found


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    """Return a service manager with its socket in the environment and without a watchdog."""
    path = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        listener.setblocking(False)
        yield Manager(listener)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (figures(), IDLE),
        (figures(age_s=7.6), "serving; the oldest change is 8 s old"),
        (
            figures(pending_bytes=3 << 20, age_s=2),
            "serving; 3 MiB to upload; the oldest change is 2 s old",
        ),
        (
            figures(pending_bytes=1024, error="no route\nto host"),
            "serving; the bucket accepts no upload: no route to host; 1 KiB to upload",
        ),
        (figures("degraded", "disk full"), "degraded; disk full; everything is in the bucket"),
    ],
)
def test_status_text_for_systemd_is_one_line(shown: dict[str, Any], text: str) -> None:
    assert status_text(shown) == text


def test_status_text_for_systemd_truncates_a_long_error() -> None:
    assert len(status_text(figures(error="x" * 10_000))) == SUPERVISED_CHARS_MAX


def test_status_text_for_systemd_escapes_a_path_that_is_not_utf8(manager: Manager) -> None:
    """A path that is not UTF-8 is escaped, because systemd would ignore the message."""
    manager.shown = figures("degraded", os.fsdecode(b"disk of /\xff full"))
    manager.supervisor().report()

    [[status]] = manager.received()
    assert status.startswith("STATUS=degraded; disk of /\\udcff full")


def test_systemd_watchdog_of_this_process_is_used() -> None:
    assert watchdog_s({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "7"}, 7) == 4.0
    assert watchdog_s({"WATCHDOG_USEC": "4000000"}, 7) == 4.0


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "8"},
    ],
)
def test_systemd_watchdog_of_another_process_is_ignored(environment: dict[str, str]) -> None:
    assert watchdog_s(environment, 7) is None


async def test_watchdog_message_is_sent_after_half_of_the_watchdog_interval(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """With a watchdog limit of 4 s, a message is sent every 2 s."""
    monkeypatch.setenv("WATCHDOG_USEC", "4000000")
    with trio.move_on_after(5):
        await manager.supervisor().run()

    assert manager.received() == [["WATCHDOG=1", f"STATUS={IDLE}"], ["WATCHDOG=1"], ["WATCHDOG=1"]]


async def test_changed_status_is_sent_to_systemd_even_without_a_watchdog(
    manager: Manager, autojump_clock: trio.testing.MockClock
) -> None:
    """Without a watchdog, a message is sent only if the status has changed."""
    supervisor = manager.supervisor()
    async with running(supervisor.run):
        await trio.sleep(3 * SUPERVISED_STATUS_S + 1)
        before = manager.received()
        manager.shown = figures("degraded", "disk full")
        await trio.sleep(2 * SUPERVISED_STATUS_S)

    assert before == [[f"STATUS={IDLE}"]]
    assert manager.received() == [["STATUS=degraded; disk full; everything is in the bucket"]]


async def test_supervisor_returns_immediately_without_a_service_manager(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)

    await Supervisor(figures).run()


def test_unmount_asks_systemd_for_more_time_while_uploads_succeed(manager: Manager) -> None:
    """During an unmount, more time is requested only while the bucket accepts uploads."""
    supervisor = manager.supervisor()
    supervisor.ready()
    supervisor.ending()
    supervisor.ending()
    supervisor.report()
    manager.shown = figures(error="timeout")
    supervisor.report()

    more = "EXTEND_TIMEOUT_USEC=90000000"
    assert manager.received() == [
        ["READY=1", f"STATUS={IDLE}"],
        ["STOPPING=1", more],
        [more],
        ["STATUS=serving; the bucket accepts no upload: timeout; everything is in the bucket"],
    ]


def test_messages_to_a_hanging_service_manager_are_delayed_but_not_lost(manager: Manager) -> None:
    """Messages that a stalled service manager did not accept are sent later, but only once."""
    while process.notify("x"):
        pass
    supervisor = manager.supervisor()
    supervisor.ready()
    supervisor.report("WATCHDOG=1")
    supervisor.report("WATCHDOG=1")
    assert {line for lines in manager.received() for line in lines} == {"x"}

    supervisor.report("WATCHDOG=1")
    supervisor.report()

    assert manager.received() == [["READY=1", "WATCHDOG=1", f"STATUS={IDLE}"]]


class Shown:
    """A front end that records its calls."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def notice(self, text: str) -> None:
        """Record a notice that the daemon shows."""
        self.lines.append(text)

    def progress(self, what: str, done: int, total: int) -> None:
        """Record the progress of the start."""
        self.lines.append((what, done, total))

    def ask(self, prompt: str) -> str:
        """Return an answer that contains the question."""
        return f"answer to {prompt}"

    def ready(self) -> None:
        """Record that the mount is ready."""
        self.lines.append("ready")


def test_slow_mount_asks_systemd_for_more_time_after_each_percent_of_progress(
    manager: Manager,
) -> None:
    """During a slow start, each percent of progress requests more time exactly once."""
    shown = Shown()
    front = SupervisedFront(shown)
    front.notice("restoring")
    for done in (0, 1, 2, 200):
        front.progress("metadata", done, 200)
    front.progress("nothing", 0, 0)
    front.ready()

    assert front.ask("x") == "answer to x"
    assert shown.lines == [
        "restoring",
        *(("metadata", done, 200) for done in (0, 1, 2, 200)),
        ("nothing", 0, 0),
        "ready",
    ]
    more = "EXTEND_TIMEOUT_USEC=300000000"
    assert manager.received() == [
        [f"STATUS={text}", more]
        for text in ("metadata: 0 %", "metadata: 1 %", "metadata: 100 %", "nothing: 0 %")
    ]
