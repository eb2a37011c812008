"""Tests of lost writers, suspended writers and removed files with a real S3 server."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from s3fs_meta.mount.existing import mount_table
from tests.cli.conftest import Place, lose_host
from tests.end_to_end.conftest import on_server
from tests.end_to_end.contents import contents, differing
from tests.end_to_end.projects import SOURCE, copying, modes, run, write_project
from tests.polling import wait_until
from tests.programs import QuickProgram, suspend

__all__ = ["on_server"]

pytestmark = [pytest.mark.mount, pytest.mark.s3]

INTERVAL_S = 1.0


def other_machine(program: QuickProgram, name: str) -> QuickProgram:
    """Return a runner of the command on a host without local state."""
    other = QuickProgram(program.cachedir.with_name(name))
    other.environment = program.environment
    return other


def remount(place: Place, program: QuickProgram, *options: str) -> None:
    """Unmount, and mount with other options."""
    program.ok("umount", place.mountpoint)
    program.ok("mount", "-o", ",".join(options), place.url, place.mountpoint)


def test_lost_host_loses_only_the_last_seconds_of_changes(
    on_server: Place, program: QuickProgram, tmp_path: Path
) -> None:
    """If a host is lost during a copy, another host has all files older than two sync intervals."""
    mnt = on_server.mountpoint
    remount(on_server, program, f"sync_interval={INTERVAL_S}")
    write_project(tmp_path / "project", 8)
    run("cp", "-a", tmp_path / "project", mnt, here=tmp_path)
    run("make", here=mnt / "project")
    (mnt / "d").mkdir()
    times: dict[str, float] = {}
    with copying(sorted(SOURCE.glob("*.py")), mnt / "d") as copy:
        end_s = time.monotonic() + 4 * INTERVAL_S
        while time.monotonic() < end_s:
            for name, _source in copy.done[len(times) :]:
                times[name] = time.monotonic()
        asked_s = time.monotonic()
        age_s = program.status(mnt)["chain"]["unshipped_age_s"]
        lose_host(program, on_server)

    other = other_machine(program, "other-state")
    seen = other.status(on_server.url)
    assert (seen["state"], seen["proven"], seen["faults"]) == ("held", True, [])
    assert seen["reached_txg"] == seen["txg"]
    assert seen["requests"] <= 12
    other.ok("mount", "--takeover", on_server.url, mnt)

    found = contents(mnt / "d")
    lost = [name for name, _source in copy.done if name not in found]
    assert all(times.get(name, asked_s) >= asked_s - age_s - INTERVAL_S for name in lost)
    # A failover may lose only the newest files.
    assert lost == [name for name, _source in copy.done][len(found) :]
    whole = {name: source.read_bytes() for name, source in copy.done if name in found}
    assert [name for name in whole if not whole[name].startswith(found[name])] == []
    assert run("./program", here=mnt / "project") == "28\n"
    assert "up to date" in run("make", here=mnt / "project")
    other.ok("umount", mnt)
    other.ok("fsck", "-n", "--deep", on_server.url)


def test_mount_of_an_earlier_txg_shows_the_complete_removed_tree(
    on_server: Place, program: QuickProgram, tmp_path: Path
) -> None:
    mnt = on_server.mountpoint
    shutil.copytree(SOURCE, mnt / "tree")
    program.ok("flush", mnt)
    expected, expected_modes = contents(mnt / "tree"), modes(mnt / "tree")
    before = program.status(mnt)["chain"]
    shutil.rmtree(mnt / "tree")
    (mnt / "more").write_text("life goes on")
    program.ok("flush", mnt)

    then = tmp_path / "then"
    then.mkdir()
    program.ok("mount", "-o", f"ro,txg={before['txg']}", on_server.url, then)

    assert differing(contents(then / "tree"), expected) == []
    assert modes(then / "tree") == expected_modes
    assert not (then / "more").exists()
    assert (mnt / "more").exists()
    program.ok("umount", then)
    program.ok("umount", mnt)


def test_writer_that_resumes_after_a_takeover_is_fenced(
    on_server: Place, program: QuickProgram, tmp_path: Path
) -> None:
    """When a suspended writer resumes, it becomes read-only and keeps its changes locally."""
    mnt = on_server.mountpoint
    remount(on_server, program, f"sync_interval={INTERVAL_S}")
    (mnt / "both").write_text("before")
    program.ok("flush", mnt)
    pid = program.status(mnt)["pid"]
    (mnt / "only on the old one").write_text("not shipped")
    suspend(pid)
    try:
        other, elsewhere = other_machine(program, "other-state"), tmp_path / "elsewhere"
        elsewhere.mkdir()
        other.ok("mount", "--takeover", on_server.url, elsewhere)
        (elsewhere / "new").write_text("by the new writer")
        (elsewhere / "both").write_text("after")
        other.ok("flush", elsewhere)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: program.status(mnt)["state"] == "fenced", "the writer is not fenced")
    with pytest.raises(OSError, match="Read-only"):
        (mnt / "too late").write_text("x")
    assert (mnt / "only on the old one").read_text() == "not shipped"
    assert program.run("umount", mnt).returncode == 13
    assert mount_table.find(str(mnt)) is None

    other.ok("umount", elsewhere)
    other.ok("fsck", "-n", "--deep", on_server.url)
    mounted = program.run("mount", on_server.url, mnt)
    assert "recover-state" in mounted.stderr
    assert (mnt / "new").read_text() == "by the new writer"
    assert (mnt / "both").read_text() == "after"
    program.ok("umount", mnt)
    program.ok("recover-state", "--to", tmp_path / "rescued", on_server.url)
    rescued = json.dumps(sorted(path.name for path in (tmp_path / "rescued").rglob("*")))
    assert "only on the old one" in rescued
