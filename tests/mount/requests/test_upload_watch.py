"""Tests of the lines that a command prints while it waits for uploads."""

import itertools
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from s3fs_meta.console.interruption import Remains
from s3fs_meta.control.protocol import socket_path
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.limits import (
    SILENCE_SHOWN_S_MIN,
    UPLOAD_FORCE_S_MIN,
    UPLOAD_LINE_PAUSE_S_MAX,
    UPLOAD_LINE_PAUSE_S_MIN,
)
from s3fs_meta.mount.requests.upload_watch import RemainingUpload, UploadWatch, rate_of

WHERE = "s3://bucket/home at http://nas:9000"
MIB = 1 << 20


def figures(
    pending_bytes: int = 20 * MIB, why: str = "", **outage: float
) -> dict[str, Mapping[str, Any] | str]:
    """Return statistics of a mount, from which the lines are printed."""
    return {
        "url": "s3://bucket/home",
        "endpoint": "http://nas:9000",
        "upload": {
            "pending_bytes": pending_bytes,
            "pending_blocks": pending_bytes // MIB,
            "pending_packs": -(-pending_bytes // (16 * MIB)),
            "last_error": "",
        },
        "chain": {"unshipped_since_ns": 1, "last_error": ""},
        "outage": {"age_s": 0.0, "silent_s": 0.0, "why": why, **outage},
    }


class Lines:
    """A front end that records its lines with their times."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, str]] = []
        self._began_s = trio.current_time()

    def notice(self, text: str) -> None:
        """Record a printed line."""
        self.seen.append((round(trio.current_time() - self._began_s), text))

    def progress(self, what: str, done: int, total: int) -> None:
        """Ignore progress, which is not printed as a line."""

    def ask(self, prompt: str) -> str:
        """Fail, because an upload asks no question."""
        raise AssertionError(prompt)

    def ready(self) -> None:
        """Ignore the report that the mount is ready."""


def watch(lines: Lines, remains: Remains | None = None, advice: str = "") -> UploadWatch:
    """Return an upload watch for a mount that is never polled."""
    return UploadWatch(Target("s3://bucket/home", Path("/s"), "/mnt"), lines, remains, advice)


async def test_first_line_about_an_upload_shows_its_size_and_bucket_and_server(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lines = Lines()

    watch(lines).note(RemainingUpload.of(figures()))

    assert lines.seen == [(0, f"uploading 20 MiB in 20 blocks (about 2 packs) to {WHERE}")]


async def test_upload_progress_is_printed_at_growing_intervals(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lines = Lines()
    watched = watch(lines)
    uploading = figures()
    assert isinstance(uploading["upload"], dict)
    uploading["upload"] |= {"sent_bytes_per_s": 2 * MIB, "left_s": 10.0}

    for _ in range(400):
        watched.note(RemainingUpload.of(uploading))
        await trio.sleep(1)

    times = [time for time, _line in lines.seen]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[0] == UPLOAD_LINE_PAUSE_S_MIN
    assert pauses[-1] == UPLOAD_LINE_PAUSE_S_MAX
    assert lines.seen[-1][1] == "20 MiB in 20 blocks (about 2 packs) to upload, 2 MiB/s, about 10 s"


async def test_silent_bucket_is_reported_before_a_request_fails(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lines = Lines()
    watched = watch(lines)
    watched.note(RemainingUpload.of(figures()))
    await trio.sleep(UPLOAD_LINE_PAUSE_S_MIN)

    watched.note(RemainingUpload.of(figures(silent_s=SILENCE_SHOWN_S_MIN)))

    assert lines.seen[-1][1].endswith(f"to upload, no response from {WHERE} for 5 s")


async def test_start_and_end_of_an_outage_are_printed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """No line is printed for a failure if a retry succeeds within a second."""
    lines = Lines()
    watched = watch(lines)

    watched.note(RemainingUpload.of(figures(why="connection refused", age_s=0.5)))
    watched.note(RemainingUpload.of(figures(why="connection refused", age_s=25.0)))
    watched.note(RemainingUpload.of(figures(why="connection refused", age_s=25.4)))
    watched.note(RemainingUpload.of(figures()))

    _first, away, back = (line for _time, line in lines.seen)
    assert away == (
        f"requests to {WHERE} have failed for 25 s: connection refused; 20 MiB in 20 blocks (about"
        " 2 packs) to upload; no change is lost, and the mount will retry"
    )
    assert back == f"the bucket {WHERE} responds again"


async def test_forced_umount_stops_waiting_after_an_outage_of_a_few_seconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    calls: list[float] = []
    watched = watch(Lines())
    watched.on_outage(lambda: calls.append(trio.current_time()))

    for age_s in (0.0, 1.5, UPLOAD_FORCE_S_MIN):
        assert calls == []
        watched.note(RemainingUpload.of(figures(why="connection refused", age_s=age_s)))

    assert len(calls) == 1


async def test_upload_refused_by_the_server_is_not_reported_as_an_outage(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lines = Lines()
    refused = figures()
    assert isinstance(refused["upload"], dict)
    refused["upload"]["last_error"] = "store refused 'pack/1': AccessDenied"

    watch(lines).note(RemainingUpload.of(refused))

    assert f"waiting for {WHERE}: store refused 'pack/1': AccessDenied; " in lines.seen[-1][1]


async def test_mount_that_uploads_nothing_more_prints_no_promise_of_a_retry(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The outcome of a fenced mount is printed after its end."""
    lines, fenced = Lines(), figures(why="epoch 1 was replaced", age_s=25.0)

    watch(lines).note(RemainingUpload.of({**fenced, "ships": False}))

    assert lines.seen == []


async def test_interrupted_wait_reports_the_changes_that_are_not_uploaded(
    autojump_clock: trio.testing.MockClock,
) -> None:
    remains = Remains("")
    watched = watch(Lines(), remains, "/mnt stays mounted")
    assert remains.text == "the last changes may be only on this host. /mnt stays mounted"

    watched.note(RemainingUpload.of(figures()))
    watched.advise("run: s3fs-meta umount /mnt")

    assert remains.text == (
        "not in the bucket yet, only on this host: 20 MiB in 20 blocks (about 2 packs). run:"
        " s3fs-meta umount /mnt"
    )


async def test_upload_that_contains_only_metadata_is_described_without_a_size(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lines = Lines()

    watch(lines).note(RemainingUpload.of(figures(0)))

    assert lines.seen == [(0, f"uploading changes of the metadata to {WHERE}")]


async def test_wait_for_an_idle_daemon_prints_nothing_while_the_bucket_responds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A daemon without changes may need a second to exit, during which no line is printed."""
    idle, lines = figures(0), Lines()
    assert isinstance(idle["chain"], dict)
    idle["chain"]["unshipped_since_ns"] = 0
    watched = watch(lines)

    watched.note(RemainingUpload.of(idle))
    assert lines.seen == []
    watched.note(RemainingUpload.of(idle | {"outage": {"age_s": 0.0, "silent_s": 6.0, "why": ""}}))

    [(_time, line)] = lines.seen
    assert line == f"the last changes to upload, no response from {WHERE} for 6 s"


async def test_command_accepts_upload_statistics_of_an_older_daemon(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An older daemon reports no server, no outage and no number of packs."""
    older = figures(MIB)
    del older["outage"], older["endpoint"]
    assert isinstance(older["upload"], dict)
    del older["upload"]["pending_packs"]
    lines = Lines()

    watch(lines).note(RemainingUpload.of(older))

    assert lines.seen == [(0, "uploading 1 MiB in 1 block to s3://bucket/home")]


async def test_daemon_that_exits_during_a_poll_is_not_reported(tmp_path: Path) -> None:
    """The command that waits for the daemon reports the outcome of the last upload."""
    lines = Lines()
    with socket.socket(socket.AF_UNIX) as plain, socket_path(tmp_path) as path:
        plain.bind(path)
        plain.listen()
        listener = trio.socket.from_stdlib_socket(plain)
        async with UploadWatch(Target("s3://bucket/home", tmp_path, "/mnt"), lines).running():
            for _ in range(2):  # The second poll begins after the end of the first.
                client, _address = await listener.accept()
                with client:
                    assert b'"status"' in await client.recv(1000)

    assert lines.seen == []


async def test_error_during_a_wait_for_uploads_is_not_an_exception_group(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with pytest.raises(ValueError, match="alone"):
        async with watch(Lines()).running():
            raise ValueError("alone")


def test_upload_progress_omits_the_speed_if_it_is_unknown() -> None:
    assert rate_of({"sent_bytes_per_s": None, "left_s": None}) == ()
    assert rate_of({"sent_bytes_per_s": MIB, "left_s": 90.0}) == ("1 MiB/s", "about 2 min")
    assert rate_of({"sent_bytes_per_s": MIB, "left_s": 0.0}) == ("1 MiB/s",)
