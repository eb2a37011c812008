"""The keep command, which keeps a point in time beyond the retention."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from s3fs_meta.limits import MIB
from s3fs_meta.mount.existing import targets
from s3fs_meta.sync import known_points
from tests.cli.conftest import Place
from tests.outlived import outlive, stored_bytes
from tests.polling import PROCESS_S_MAX
from tests.programs import Program

pytestmark = pytest.mark.mount


def listed(program: Program, target: str | Path) -> dict[str, dict[str, Any]]:
    """Return the kept points by name."""
    found = json.loads(program.ok("keep", target, "--list", "--json"))
    return {one["name"]: one for one in found["points"]}


def completed(program: Program, url: str) -> tuple[str, ...]:
    """Return the names of kept points that completion offers."""
    known = known_points.read(targets.of_url(url, program.cachedir).state)
    assert known is not None
    return known.kept


def test_kept_point_is_readable_after_the_retention_period(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """A kept point stays readable in .snapshots and with mount, restore and diff."""
    mnt, content = mounted.mountpoint, os.urandom(2 * MIB)
    (mnt / "report").write_bytes(content)
    assert program.ok("keep", mnt, "before-upgrade").startswith("kept before-upgrade: txg ")
    assert completed(program, mounted.url) == ("before-upgrade",)
    (mnt / "report").write_bytes(b"overwritten")
    outlive(program, mounted)

    one = listed(program, mnt)["before-upgrade"]
    assert 2 * MIB < one["alone_bytes"] < 3 * MIB
    assert (mnt / ".snapshots" / "before-upgrade" / "report").read_bytes() == content
    assert not (mnt / ".snapshots" / "unknown").exists()
    program.ok("restore", mounted.url, "--to", tmp_path / "copy", "--at", "before-upgrade")
    assert (tmp_path / "copy" / "report").read_bytes() == content
    diff = program.ok("diff", mounted.url, "before-upgrade", "newest")
    assert "report" in diff
    past = tmp_path / "past"
    past.mkdir()
    program.ok("mount", "-o", "ro,at=before-upgrade", mounted.url, past)
    try:
        assert (past / "report").read_bytes() == content
    finally:
        program.ok("umount", past)

    before = stored_bytes(mounted)
    assert program.ok("keep", mnt, "--drop", "before-upgrade").startswith("dropped")
    assert completed(program, mounted.url) == ()
    program.ok("reclaim", mnt)
    assert stored_bytes(mounted) <= before - 2 * MIB
    words = ("restore", mounted.url, "--to", tmp_path / "x", "--at", "before-upgrade")
    assert program.run(*words).returncode != 0
    assert program.run("fsck", "-n", mounted.url).returncode == 0


def test_keep_command_without_a_mount_acquires_and_releases_the_lease(
    program: Program, place: Place, tmp_path: Path
) -> None:
    """Without a mount, keep acquires and releases the lease; keep --list needs no lease."""
    mnt = place.mountpoint
    program.ok("mount", place.url, mnt)
    (mnt / "report").write_bytes(b"first")
    program.ok("umount", mnt)
    made = json.loads(program.ok("keep", place.url, "a", "--json"))
    assert made["point"]["name"] == "a"
    assert listed(program, place.url)["a"]["txg"] == made["point"]["txg"]
    assert "the sizes are known only while" in program.ok("keep", place.url, "--list")
    assert program.status(place.url)["state"] == "free"
    assert program.run("fsck", "-n", "--deep", place.url).returncode == 0
    program.ok("keep", place.url, "b", "--at", "a")
    assert completed(program, place.url) == ("a", "b")
    program.ok("mount", place.url, mnt)
    (mnt / "report").write_bytes(b"second")
    program.ok("umount", mnt)
    done = program.run("rollback", "--at", "b", "--yes", place.url)
    assert done.returncode == 0, done.stderr
    program.ok("restore", place.url, "--to", tmp_path / "copy")
    assert (tmp_path / "copy" / "report").read_bytes() == b"first"
    dropped = program.ok("keep", place.url, "--drop", "a", "--drop", "b", "--drop", "a")
    assert dropped.startswith("dropped a, b;")
    assert listed(program, place.url) == {}


def test_expiry_drops_only_points_that_were_kept_with_the_option_auto(
    program: Program, mounted: Place
) -> None:
    """A dry run drops no kept point. Expiry drops only points that were kept with --auto."""
    mnt = mounted.mountpoint
    for name in ("n1", "n2", "n3"):
        (mnt / name).touch()
        program.ok("keep", mnt, name, "--auto")
    program.ok("keep", mnt, "by-hand")
    made = json.loads(program.ok("keep", mnt, "--auto", "--json"))
    assert made["point"]["name"].startswith("auto-2")
    policy = ("--expire", "--keep-last", "2")
    shown = program.ok("keep", mnt, *policy, "--dry-run")
    assert "would drop: n1" in shown
    assert len(listed(program, mnt)) == 5
    found = json.loads(program.ok("keep", mnt, *policy, "--json"))
    assert found["dropped"] is True
    left = {one["name"] for one in found["points"] if one["reasons"]}
    assert set(listed(program, mnt)) == left | {"by-hand"}
    assert left == {"n3", made["point"]["name"]}


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("a", "--list"),
        ("a", "--drop", "b"),
        ("2026-01-01",),
        ("a", "--at", "2026-13-01"),
        ("--expire",),
        ("--keep-daily", "7"),
        ("a", "--keep-daily", "7"),
        ("--list", "--dry-run"),
        ("--expire", "--keep-daily", "-1"),
        ("--at", "10m"),
    ],
    ids=" ".join,
)
def test_keep_command_refuses_contradictory_options(
    quick: Program, place: Place, words: tuple[str, ...]
) -> None:
    before = sorted(place.bucket.rglob("*"))
    assert quick.run("keep", place.url, *words).returncode == 2
    assert sorted(place.bucket.rglob("*")) == before


def test_keep_command_with_a_time_but_no_name_asks_for_a_name(quick: Program, place: Place) -> None:
    refused = quick.run("keep", place.url, "--at", "10m")
    assert refused.returncode == 2
    assert refused.stderr == "s3fs-meta: --at needs a NAME for the kept point, or --auto\n"


def test_keep_command_refuses_two_actions_at_once(quick: Program, place: Place) -> None:
    refused = quick.run("keep", place.url, "before-upgrade", "--list")
    assert refused.returncode == 2
    assert "give only one of these" in refused.stderr


def test_keep_command_without_an_action_names_all_actions(quick: Program, place: Place) -> None:
    assert "give one of these: a NAME to keep" in quick.run("keep", place.url).stderr
    refused = quick.run("keep", place.url, "--keep-daily", "7").stderr
    assert "--keep-* can only be used with --expire" in refused


def test_keep_command_with_option_list_reports_that_no_points_are_kept(
    program: Program, mounted: Place
) -> None:
    assert program.ok("keep", mounted.mountpoint, "--list") == "no point in time is kept\n"
    done = program.run("keep", mounted.mountpoint, "--drop", "unknown")
    assert done.returncode != 0
    assert "no kept point" in done.stderr


def test_find_program_lists_files_of_a_kept_point(program: Program, mounted: Place) -> None:
    mnt = mounted.mountpoint
    (mnt / "folder").mkdir()
    (mnt / "folder" / "file").write_bytes(b"content")
    program.ok("keep", mnt, "a-week-ago")
    (mnt / "folder" / "file").unlink()
    (mnt / "folder").rmdir()
    outlive(program, mounted)
    done = subprocess.run(
        ["find", mnt / ".snapshots" / "a-week-ago", "-type", "f"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PROCESS_S_MAX,
    )
    assert done.stdout.split() == [str(mnt / ".snapshots" / "a-week-ago" / "folder" / "file")]


@pytest.mark.parametrize("words", [("keep", "name", "--at=none"), ("clone", "--at=none", "copy")])
def test_command_in_an_error_of_a_mount_includes_the_url(
    program: Program, mounted: Place, words: tuple[str, ...]
) -> None:
    """The daemon reports errors that suggest commands without a URL."""
    command, *rest = words
    paths = [mounted.mountpoint / word if word == "copy" else word for word in rest]
    done = program.run(command, mounted.mountpoint, *paths)
    expected = f"s3fs-meta keep --list --cachedir {program.cachedir} {mounted.url} "
    assert expected in done.stderr
