"""Tests of the lines that a command prints while it waits for downloads."""

from pathlib import Path
from typing import Any

import trio
import trio.testing
from typing_extensions import override

from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.limits import SILENCE_SHOWN_S_MIN, UPLOAD_AWAY_S_MIN, UPLOAD_LINE_PAUSE_S_MIN
from s3fs_meta.mount.requests.download_watch import DownloadWatch
from s3fs_meta.mount.requests.upload_watch import RemainingUpload

WHERE = "s3://bucket/home at http://nas:9000"


class Lines(TerminalFront):
    """A front end that records its lines with their times."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.seen: list[tuple[float, str]] = []
        self._began_s = trio.current_time()

    @override
    def notice(self, text: str) -> None:
        self.seen.append((round(trio.current_time() - self._began_s), text))


def figures(why: str = "", **outage: float) -> dict[str, Any]:
    """Return statistics of a mount, from which the lines are printed."""
    return {
        "url": "s3://bucket/home",
        "endpoint": "http://nas:9000",
        "upload": {"pending_bytes": 1, "pending_blocks": 1, "last_error": ""},
        "chain": {"unshipped_since_ns": 1, "last_error": ""},
        "outage": {"age_s": 0.0, "silent_s": 0.0, "why": why, **outage},
    }


def watch(lines: Lines) -> DownloadWatch:
    """Return a download watch for a mount that is never polled."""
    return DownloadWatch(Target("s3://bucket/home", Path("/s"), "/mnt"), lines)


async def test_download_prints_no_line_while_the_bucket_responds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """During a download, no line is printed for a short failure or a pending upload."""
    lines = Lines()
    watched = watch(lines)

    watched.note(RemainingUpload.of(figures()))
    watched.note(RemainingUpload.of(figures(silent_s=SILENCE_SHOWN_S_MIN / 2)))
    watched.note(RemainingUpload.of(figures(why="connection refused", age_s=UPLOAD_AWAY_S_MIN / 2)))

    assert lines.seen == []


async def test_command_that_downloads_reports_a_silent_bucket_at_growing_intervals(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lines = Lines()
    watched = watch(lines)

    for second in range(20):
        watched.note(RemainingUpload.of(figures(silent_s=SILENCE_SHOWN_S_MIN + second)))
        await trio.sleep(1)
    watched.note(RemainingUpload.of(figures()))
    watched.note(RemainingUpload.of(figures()))

    assert [time for time, _line in lines.seen] == [
        0,
        UPLOAD_LINE_PAUSE_S_MIN,
        3 * UPLOAD_LINE_PAUSE_S_MIN,
        20,
    ]
    assert lines.seen[0][1] == (
        f"no response from {WHERE} for 5 s; the download continues when the store responds; "
        "cached content is kept"
    )
    assert lines.seen[-1][1] == f"the bucket {WHERE} responds again"


async def test_reason_for_an_outage_is_printed_while_downloads_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lines = Lines()

    watch(lines).note(RemainingUpload.of(figures(why="the server hangs", age_s=25.0)))

    assert (
        f"requests to {WHERE} have failed for 25 s: the server hangs; the download"
        in lines.seen[0][1]
    )
