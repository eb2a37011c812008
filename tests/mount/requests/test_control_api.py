"""Tests of requests that commands send to a mount over its control socket."""

import os
import socket
from pathlib import Path

import pytest
import trio
import trio.testing
from typing_extensions import override

from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.control.protocol import SOCKET_NAME, Message, Report
from s3fs_meta.control.server import ControlServer
from s3fs_meta.errors import BusyError, ControlError
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.existing.mount_table import FS_TYPE, Mounted
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.limits import CONTROL_ANSWER_S_MAX, HELD_S_MAX
from s3fs_meta.mount.requests import control_api
from s3fs_meta.mount_errors import NotMountedError
from s3fs_meta.sync.host_state.state_dir import StateDir


class Watching(TerminalFront):
    """A front end that records the reported progress and the notices."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.shown: list[tuple[str, int, int]] = []
        self.notices: list[str] = []

    @override
    def progress(self, what: str, done: int, total: int) -> None:
        self.shown.append((what, done, total))

    @override
    def notice(self, text: str) -> None:
        self.notices.append(text)


async def test_several_mounts_are_asked_at_the_same_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A daemon that does not answer must not delay the request to another daemon."""
    places = [Target(f"local:///{name}", Path(name)) for name in "abc"]
    asked: set[str] = set()
    all_asked = trio.Event()

    async def reply(place: Target) -> str:
        asked.add(place.url)
        if len(asked) == len(places):
            all_asked.set()
        await all_asked.wait()
        return place.url

    with trio.fail_after(CONTROL_ANSWER_S_MAX):
        replies = await control_api.ask_each(places, reply)

    assert replies == [place.url for place in places]


async def test_error_of_one_mount_is_raised_without_an_exception_group() -> None:
    async def refuse(place: Target) -> str:
        await trio.lowlevel.checkpoint()
        raise FileNotFoundError(place.url)

    with pytest.raises(FileNotFoundError, match=r"local:///[ab]"):
        await control_api.ask_each([Target(f"local:///{n}", Path(n)) for n in "ab"], refuse)


async def test_error_about_a_missing_daemon_names_the_given_mountpoint(tmp_path: Path) -> None:
    """The error contains the URL or path that the user gave, not the state directory."""
    with pytest.raises(NotMountedError, match=r"^no s3fs-meta filesystem is mounted on /mnt/x;"):
        await control_api.request_status(Target("local:///a", tmp_path / "s", "/mnt/x"))
    with pytest.raises(NotMountedError, match=r"^local:///a is not mounted"):
        await control_api.request_status(Target("local:///a", tmp_path / "s"))


async def test_status_of_a_stopped_daemon_fails_after_a_timeout(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A daemon that accepts the connection but never replies cannot block a command forever."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / SOCKET_NAME))
        listener.listen()

        with pytest.raises(ControlError, match=r"^the daemon that serves /mnt/x did not answer"):
            await control_api.request_status(Target("local:///a", tmp_path, "/mnt/x"))

    assert autojump_clock.current_time() >= CONTROL_ANSWER_S_MAX


async def test_flush_request_reports_progress_and_result(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    async def flush(_arguments: Message, report: Report) -> Message:
        report({"what": "blocks", "done": 1, "total": 2})
        return {"published": True, "txg": 7}

    await nursery.start(ControlServer(tmp_path, {control_api.FLUSH: flush}).serve)
    front = Watching()

    result = await control_api.request_flush(Target("local:///a", tmp_path), front)

    assert result == {"published": True, "txg": 7}
    assert front.shown == [("blocks", 1, 2)]


async def test_flush_that_is_refused_because_other_requests_wait_is_requested_again(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """An unmount begins with a flush, which must not fail because other commands are running."""
    refusals = [BusyError(32)]

    async def flush(_arguments: Message, _report: Report) -> Message:
        if refusals:
            raise refusals.pop()
        return {"published": True, "txg": 7}

    await nursery.start(ControlServer(tmp_path, {control_api.FLUSH: flush}).serve)

    result = await control_api.request_flush(Target("local:///a", tmp_path), Watching())

    assert (result, refusals) == ({"published": True, "txg": 7}, [])


async def test_unmount_waits_until_the_state_directory_is_unlocked(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    outcome = {"complete": True, "why": ""}

    async def finished(_arguments: Message, report: Report) -> Message:
        report({})
        return outcome

    holder = StateDir(tmp_path)
    await holder.lock()
    await nursery.start(ControlServer(tmp_path, {control_api.FINISHED: finished}).serve)
    waiting, results = trio.Event(), []

    async def wait() -> None:
        place = Target("local:///a", tmp_path)
        results.append(await control_api.wait_finished(place, Watching(), waiting))

    async with trio.open_nursery() as waiters:
        waiters.start_soon(wait)
        await waiting.wait()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert results == []
        holder.unlock()

    assert results == [outcome]


async def test_unmount_result_of_a_killed_daemon_is_incomplete(tmp_path: Path) -> None:
    """If the daemon was killed, the caller does not wait, and the result is "incomplete"."""
    waiting = trio.Event()

    result = await control_api.wait_finished(Target("local:///a", tmp_path), Watching(), waiting)

    assert waiting.is_set()
    assert result["complete"] is False


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """Return a mount that has a note about this process, but no state directory."""
    monkeypatch.setattr(targets, "notes_dir", lambda: tmp_path / "notes")
    mounted = Mounted(str(tmp_path), "0:99", FS_TYPE, "local:///a")
    assert targets.write_note(Target("local:///a", tmp_path / "s"), mounted) is not None
    return targets.of_mountpoint(tmp_path, None)


async def test_unmount_result_of_a_daemon_that_stopped_listening_is_read_from_its_note(
    noted: Target,
) -> None:
    """The daemon may exit after a command has found it, but before the command connects."""
    results = []

    async def wait() -> None:
        results.append(await control_api.wait_finished(noted, Watching(), trio.Event()))

    async with trio.open_nursery() as waiters:
        waiters.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert noted.note is not None
        targets.end_note(noted.note, {"complete": True, "why": ""})

    assert results == [{"complete": True, "why": ""}]


async def test_running_daemon_without_its_state_directory_does_not_count_as_killed(
    noted: Target, autojump_clock: trio.testing.MockClock
) -> None:
    """A process may remove the state directory of a running daemon, together with its socket."""
    still_mounted = noted._replace(mounted=True)
    running = await control_api.wait_finished(still_mounted, Watching(), trio.Event())
    exited = noted._replace(started=noted.started + 1)  # the PID was reused
    killed = await control_api.wait_finished(exited, Watching(), trio.Event())

    assert (running["kind"], killed["kind"]) == (control_api.UNREACHED, control_api.KILLED)
    assert (running["complete"], killed["complete"]) == (False, False)


async def test_unmounted_daemon_without_its_state_directory_is_waited_for(
    noted: Target, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """The command waits longer than HELD_S_MAX, and says for which process it waits."""
    front = Watching()

    async def end_late() -> None:
        # The clock may jump before the command begins to wait.
        while not front.notices:  # noqa: ASYNC110 - a notice sets no event
            await trio.sleep(HELD_S_MAX)
        await trio.sleep(10 * HELD_S_MAX)
        assert noted.note is not None
        targets.end_note(noted.note, {"complete": False, "why": "an error"})

    nursery.start_soon(end_late)
    outcome = await control_api.wait_finished(noted, front, trio.Event())

    assert outcome == {"complete": False, "why": "an error"}
    assert front.notices == [
        f"waiting for process {os.getpid()} to exit: it does not listen in {noted.state}"
    ]
    assert autojump_clock.current_time() >= 10 * HELD_S_MAX
