"""The warm command, which downloads directory trees into the cache of a real mount."""

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.limits import MIB, PINS_MAX
from tests.cli.conftest import Place
from tests.end_to_end.system_calls import drop_page_cache
from tests.polling import PROCESS_S_MAX
from tests.programs import ROOT, Program

pytestmark = pytest.mark.mount


def _warm(program: Program, *words: str | Path) -> dict[str, Any]:
    found = json.loads(program.ok("warm", "--json", *words))
    assert isinstance(found, dict)
    return found


def _cold_tree(program: Program, place: Place) -> dict[str, bytes]:
    """Write a tree into a mount, upload the tree, and empty the cache."""
    content = {"top/big": os.urandom(3 * MIB), "top/d/a": b"small", "other": os.urandom(MIB)}
    for name, data in content.items():
        path = place.mountpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    program.ok("flush", place.mountpoint)
    program.ok("dropcache", place.mountpoint)
    return content


@contextlib.contextmanager
def _away(place: Place) -> Iterator[None]:
    """Make the bucket unreachable until the context ends."""
    aside = place.bucket.with_name("aside")
    place.bucket.rename(aside)
    try:
        yield
    finally:
        aside.rename(place.bucket)


def test_warm_command_caches_the_given_tree(program: Program, mounted: Place) -> None:
    """The warm command downloads only the given tree, and a second run downloads nothing."""
    _cold_tree(program, mounted)
    mnt = mounted.mountpoint
    assert _warm(program, mnt / "top") == {
        "total_bytes": 3 * MIB + 5,
        "cached_bytes": 3 * MIB + 5,
        "fetched_bytes": 3 * MIB + 5,
        "missing_bytes": 0,
        "missing_files": 0,
        "paths": [],
        "error": None,
        "pinned": False,
    }
    assert program.status(mnt)["cache"]["bytes"] == 3 * MIB + 5
    done = program.run("warm", mnt / "top")
    assert (done.stdout, done.stderr) == ("0 B downloaded, all 3 MiB cached\n", "")
    assert program.ok("warm", mnt) == "1 MiB downloaded, all 4 MiB cached\n"


def test_warm_command_accepts_several_paths_and_follows_symlinks(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    content = _cold_tree(program, mounted)
    (tmp_path / "link").symlink_to(mounted.mountpoint / "top" / "d")
    found = _warm(program, mounted.mountpoint / "other", tmp_path / "link")

    assert found["fetched_bytes"] == MIB + len(content["top/d/a"])


def test_warm_command_refuses_missing_or_unmounted_paths_and_too_many_paths(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """The warm command prints one line for a missing path, an unmounted path or too many paths."""
    done = program.run("warm", mounted.mountpoint / "absent")
    assert (done.returncode, done.stderr.count("\n")) == (ExitStatus.USAGE, 1)
    assert "No such file" in done.stderr
    assert program.run("warm", tmp_path).returncode == ExitStatus.NOT_MOUNTED
    some = [mounted.mountpoint] * (PINS_MAX + 1)
    done = program.run("warm", *some)
    assert (done.returncode, done.stderr.count("\n")) == (ExitStatus.USAGE, 1)
    assert "use a directory that contains them" in done.stderr


def test_warm_command_lists_uncached_files_if_the_bucket_is_unreachable(
    program: Program, mounted: Place
) -> None:
    """If the bucket is unreachable, the warm command succeeds only for a cached tree."""
    _cold_tree(program, mounted)
    mnt = mounted.mountpoint
    _warm(program, mnt / "top" / "d")
    with _away(mounted):
        done = program.run("warm", mnt / "top")
        assert done.returncode == ExitStatus.STORE
        assert done.stdout == "0 B downloaded, 5 B of 3 MiB cached\n"
        assert f"not cached: 3 MiB in 1 file:\ns3fs-meta:   {mnt}/top/big\n" in done.stderr
        assert _warm(program, mnt / "top" / "d")["missing_bytes"] == 0


@pytest.mark.slow
def test_warm_command_lists_uncached_files_in_its_json_output(
    program: Program, mounted: Place
) -> None:
    """If a download fails, warm exits with the same status with and without --json."""
    _cold_tree(program, mounted)
    mnt = mounted.mountpoint
    with _away(mounted):
        done = program.run("warm", "--json", mnt)
    found = json.loads(done.stdout)
    assert found["missing_files"] == 3
    assert sorted(found["paths"]) == [f"{mnt}/other", f"{mnt}/top/big", f"{mnt}/top/d/a"]
    assert found["error"]["kind"] == "StoreUnavailableError"
    assert done.returncode == ExitStatus.STORE


def test_warm_command_refuses_a_tree_that_exceeds_the_cache(program: Program, place: Place) -> None:
    """The warm command prints the sizes of the tree and the cache, and downloads nothing."""
    program.ok("mount", "-o", "cachesize=64M", place.url, place.mountpoint)
    mnt = place.mountpoint
    for name in range(2):
        (mnt / f"{name}").write_bytes(os.urandom(33 * MIB))
    program.ok("flush", mnt)
    program.ok("dropcache", mnt)
    done = program.run("warm", mnt)
    assert done.returncode == ExitStatus.REQUEST
    assert "66.0 MiB must be downloaded" in done.stderr
    assert "room for 64.0 MiB" in done.stderr
    done = program.run("warm", "--pin", mnt / "0")
    assert done.returncode == ExitStatus.REQUEST
    assert "33.0 MiB, but pins may use at most 32.0 MiB" in done.stderr
    assert program.status(mnt)["cache"]["bytes"] == 0
    assert _warm(program, mnt / "0")["fetched_bytes"] == 33 * MIB
    program.ok("umount", mnt)


def test_pinned_tree_stays_cached_after_a_kill_and_a_remount(
    program: Program, place: Place
) -> None:
    """If the daemon is killed, the next mount reads the list of pins before it evicts blocks."""
    options = ("-o", "cachesize=64M,read_timeout=1", place.url, str(place.mountpoint))
    program.ok("mount", *options)
    mnt = place.mountpoint
    content = _cold_tree(program, place)
    assert program.ok("warm", "--pin", mnt / "top").endswith("all 3 MiB cached and pinned\n")
    program.kill(mnt)
    program.ok("mount", *options)
    content["top/new"] = os.urandom(MIB)
    (mnt / "top" / "new").write_bytes(content["top/new"])
    for number in range(5):
        (mnt / f"filler{number}").write_bytes(os.urandom(20 * MIB))
        program.ok("flush", mnt)
    program.ok("umount", mnt)
    program.ok("mount", *options)
    drop_page_cache(mnt / "top" / "big")
    with _away(place):
        assert (mnt / "top" / "big").read_bytes() == content["top/big"]
        assert (mnt / "top" / "new").read_bytes() == content["top/new"]
        assert (mnt / "top" / "d" / "a").read_bytes() == b"small"
    program.ok("umount", mnt)


@pytest.mark.slow
def test_follower_keeps_pinned_content_up_to_date(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """A follower downloads changed files of a pinned tree before a program reads them."""
    follower = Program(tmp_path / "follower")
    mnt = tmp_path / "follow"
    mnt.mkdir()
    _cold_tree(program, mounted)
    follower.ok("mount", "-o", "ro,follow,poll=0.1", mounted.url, mnt)
    try:
        follower.ok("warm", "--pin", mnt / "top")
        (mounted.mountpoint / "top" / "new").write_bytes(os.urandom(2 * MIB))
        program.ok("flush", mounted.mountpoint)
        all_bytes = 5 * MIB + 5
        cached = {"path": f"{mnt}/top", "total_bytes": all_bytes, "cached_bytes": all_bytes}
        found: list[dict[str, Any]] = []
        until_s = time.monotonic() + PROCESS_S_MAX
        while found != [cached] and time.monotonic() < until_s:
            found = json.loads(follower.ok("pins", "--json", mnt))["pins"]
        assert found == [cached]
    finally:
        follower.ok("umount", mnt)


def test_mount_of_a_point_in_time_can_be_warmed_and_pinned(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """When the mount of a point in time is unmounted, its pins are removed."""
    _cold_tree(program, mounted)
    mnt = tmp_path / "past"
    mnt.mkdir()
    program.ok("mount", "-o", "ro,at=newest", mounted.url, mnt)
    try:
        shutil.rmtree(mounted.mountpoint / "top")
        assert _warm(program, "--pin", mnt / "top")["fetched_bytes"] == 3 * MIB + 5
        assert len(json.loads(program.ok("pins", "--json", mnt))["pins"]) == 1
    finally:
        program.ok("umount", mnt)
    assert json.loads(program.ok("pins", "--json", mounted.mountpoint))["pins"] == []


def test_warm_command_shows_progress_until_an_interrupt(program: Program, mounted: Place) -> None:
    """Ctrl-C stops the download, and warm prints how to continue it."""
    _cold_tree(program, mounted)
    program.ok("set", mounted.mountpoint, "download_limit=1K")
    ours, theirs = pty.openpty()
    words = ["warm", str(mounted.mountpoint / "top"), "--cachedir", str(program.cachedir)]
    running = subprocess.Popen(
        [sys.executable, "-m", "s3fs_meta", *words],
        env=program.environment | {"TERM": "xterm"},
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while b"downloading" not in shown:
            shown += os.read(ours, 4096)
        running.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # The read fails with EIO after the command has exited.
            while more := os.read(ours, 4096):
                shown += more
        running.wait(PROCESS_S_MAX)
    finally:
        running.kill()
        os.close(ours)
    assert running.returncode == ExitStatus.INTERRUPTED
    assert b"0%" in shown
    assert b"run the command again" in shown
    program.ok("set", mounted.mountpoint, "download_limit=off")
    assert _warm(program, mounted.mountpoint / "top")["fetched_bytes"] == 3 * MIB + 5
