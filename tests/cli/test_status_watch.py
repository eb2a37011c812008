"""The view of ``status --watch``: rates between two readings, and the exit status."""

import io
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from rich.console import Console

from s3fs_meta.cli.status_watch import TimedFigures, rendered, view
from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX
from tests.programs import Program

END: Final = "share"  # A word in the heading of each screen's last table.

BOUNDS = [0.001, 0.01]


def _figures(**changed: Any) -> dict[str, Any]:
    return {
        "url": "local:///b",
        "mountpoint": "/m",
        "state": "serving",
        "at": None,
        "read_only": False,
        "why": "",
        "offline": "",
        "cache": {"bytes": 1 << 20, "bytes_max": 1 << 30, "hits": 0, "misses": 0},
        "upload": {"pending_bytes": 0, "last_error": "", "sent_bytes_per_s": None},
        "chain": {"unshipped_age_s": 0.0, "last_error": ""},
        **{part: {"last_error": ""} for part in ("image", "compaction", "reclaim", "follow")},
        "store": {"get": {"requests": 5, "sent_bytes": 0, "received_bytes": 100}},
        "latency": _latency([100, 0, 0]),
    } | changed


def _latency(counts: list[int], **changed: float) -> dict[str, Any]:
    operations = {"read": {"counts": counts, "total_s": 1.0}}
    figures = {"read_bytes": 0, "written_bytes": 0, "waiting": 0, "oldest_s": 0.0}
    return {"bounds_s": BOUNDS, "operations": operations} | figures | changed


def test_status_watch_shows_rates_between_two_readings() -> None:
    later = _figures(
        latency=_latency([100, 20, 0], read_bytes=4 << 20, waiting=2, oldest_s=3.0),
        cache={"bytes": 1 << 20, "bytes_max": 1 << 30, "hits": 3, "misses": 1},
        store={"get": {"requests": 9, "sent_bytes": 0, "received_bytes": 4196}},
    )

    shown = view(TimedFigures(10.0, _figures()), TimedFigures(12.0, later), {})

    assert shown.rows["state"] == "serving"
    assert shown.rows["requests"] == "10/s, 2 waiting, the oldest for 3 s"
    assert shown.rows["content"] == "2 MiB/s read, 0 B/s written"
    assert shown.rows["cache"] == "1 MiB of 1 GiB, 75% of reads found there"
    assert shown.rows["bucket"] == "2.0/s, 0 B/s sent, 2 KiB/s received"
    assert shown.operations == [["read", "10/s", "5.5 ms", "9.9 ms"]]


def test_status_watch_shows_the_share_of_requests_of_each_process() -> None:
    processes = [
        {"pid": 7, "name": "tar", "uid": 0, "requests": 30},
        {"pid": None, "name": "write-back by the kernel", "uid": None, "requests": 10},
    ]
    found = {"span_s": 2.0, "requests": 40, "processes": processes}

    shown = view(TimedFigures(0.0, _figures()), TimedFigures(2.0, _figures()), found)

    assert shown.processes == [
        ["tar", "7", "root", "15/s", "75%"],
        ["write-back by the kernel", "", "", "5.0/s", "25%"],
    ]


def test_status_watch_omits_times_that_an_older_daemon_does_not_report() -> None:
    """A daemon of an older version does not report how long operations take."""
    old = {key: value for key, value in _figures().items() if key != "latency"}

    shown = view(TimedFigures(0.0, old), TimedFigures(2.0, old), {})

    assert shown.operations == []
    assert shown.rows["requests"] == "0/s"


def test_status_watch_escapes_control_characters_in_process_names() -> None:
    """Terminal escapes in the name of another user's process are not printed."""
    one = {"pid": 5, "uid": 0, "name": "x\x1b[2J", "requests": 3}
    later = _figures(why="disk \x1b[31mfull", mountpoint="/m\x1b]0;x\x07")
    found = {"span_s": 1.0, "requests": 3, "processes": [one]}
    console = Console(file=io.StringIO(), width=200, markup=False, highlight=False)

    console.print(rendered(view(TimedFigures(1.0, _figures()), TimedFigures(2.0, later), found)))

    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "\x1b" not in shown
    assert r"x\x1b[2J" in shown


def test_status_watch_prints_brackets_in_errors_unchanged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    later = _figures(image={"last_error": "[red]refused"})

    Console(markup=False).print(
        rendered(view(TimedFigures(0.0, _figures()), TimedFigures(2.0, later), {}))
    )

    assert "[red]refused" in capsys.readouterr().out


def _begin(program: Program, mountpoint: Path) -> "subprocess.Popen[str]":
    words = ("status", "--watch", "--interval", "0.2", "--cachedir", program.cachedir, mountpoint)
    return program.begin(*words, stdout=subprocess.PIPE)


def _screen(watching: "subprocess.Popen[str]", mountpoint: Path) -> str:
    """Use the mount until the next screen is printed; return this screen."""
    assert watching.stdout is not None
    lines: list[str] = []
    while not lines or END not in lines[-1]:
        os.statvfs(mountpoint)  # The kernel sends each statfs call to the daemon.
        lines.append(watching.stdout.readline())
        assert lines[-1], "the command exited early"
    return "".join(lines)


@pytest.mark.mount
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_status_watch_runs_until_a_signal_and_exits_with_0(
    program: Program, mounted: Place, number: signal.Signals
) -> None:
    watching = _begin(program, mounted.mountpoint)
    try:
        first = _screen(watching, mounted.mountpoint)
        _screen(watching, mounted.mountpoint)
        watching.send_signal(number)
        _, errors = watching.communicate(timeout=PROCESS_S_MAX)
    finally:
        watching.kill()

    assert str(mounted.mountpoint) in first
    assert "statfs" in first
    assert "\x1b" not in first
    assert (watching.returncode, errors) == (ExitStatus.DONE, "")


@pytest.mark.mount
def test_status_watch_exits_with_0_when_the_filesystem_is_unmounted(
    program: Program, mounted: Place
) -> None:
    watching = _begin(program, mounted.mountpoint)
    try:
        _screen(watching, mounted.mountpoint)
        program.ok("umount", mounted.mountpoint)
        output, errors = watching.communicate(timeout=PROCESS_S_MAX)
    finally:
        watching.kill()

    assert (watching.returncode, errors) == (ExitStatus.DONE, "")
    assert output.splitlines()[-1].startswith(mounted.url)


def test_status_watch_of_a_path_without_a_mount_fails(program: Program, tmp_path: Path) -> None:
    assert program.run("status", "--watch", tmp_path).returncode == ExitStatus.NOT_MOUNTED
