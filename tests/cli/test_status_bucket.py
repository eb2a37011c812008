"""Tests of the status command for a filesystem that is not mounted on this host."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.cli import status_bucket
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.model import Txg
from s3fs_meta.mount.existing import mount_table
from tests.cli.conftest import Place, lose_host
from tests.programs import Program

S = 10**9


def table(program: Program, *words: str) -> dict[str, str]:
    """Return the rows that status prints. On a wide terminal each row is one line."""
    program.environment["COLUMNS"] = "2000"
    lines = program.run("status", *words).stdout.splitlines()
    return {line[:14].strip(): line[14:].strip() for line in lines}


@pytest.mark.mount
def test_status_of_a_filesystem_with_a_lost_writer_prints_the_takeover_command(
    program: Program, mounted: Place
) -> None:
    """If the writer is lost, status on another host prints a takeover command that succeeds."""
    (mounted.mountpoint / "f").write_bytes(b"x" * 5000)
    program.ok("flush", mounted.mountpoint)
    before = program.status(mounted.mountpoint)
    lose_host(program, mounted)

    found = program.status(mounted.url)
    rows = table(program, mounted.url)

    assert not program.cachedir.exists()
    assert (found["state"], found["faults"]) == ("held", [])
    assert found["holder"]["pid"] == before["pid"]
    assert found["holder"]["this_host"] is False
    assert (found["txg"], found["reached_txg"]) == (before["chain"]["txg"],) * 2
    assert found["created_ns"] == before["chain"]["created_ns"]
    assert found["requests"] <= 12
    assert rows["newest state"].endswith(" ago")
    assert f"(process {before['pid']}), not released" in rows["lease"]
    state = f"--cachedir {program.cachedir}"
    assert rows["next"] == f"s3fs-meta mount --takeover {state} {mounted.url} MOUNTPOINT"
    words = rows["next"].replace("MOUNTPOINT", str(mounted.mountpoint)).split()[1:]
    program.ok(*words, here=False)
    assert (mounted.mountpoint / "f").read_bytes() == b"x" * 5000


@pytest.mark.mount
def test_status_after_a_kill_on_this_host_does_not_advise_a_takeover(
    program: Program, mounted: Place
) -> None:
    """If the daemon was killed on this host, status advises a mount without a takeover."""
    (mounted.mountpoint / "f").write_bytes(b"x")
    program.kill(mounted.mountpoint)
    subprocess.run(["umount", "-l", mounted.mountpoint], check=True)
    killed = table(program, mounted.url)
    program.ok("mount", mounted.url, mounted.mountpoint)
    program.ok("umount", mounted.mountpoint)
    free = table(program, mounted.url)

    plain = f"s3fs-meta mount --cachedir {program.cachedir} {mounted.url} MOUNTPOINT"
    assert (killed["next"], free["next"]) == (plain, plain)
    assert killed["lease"].startswith("held by this host since ")
    assert free["lease"].startswith("free; host ")
    assert free["missing"].startswith("nothing ")


@pytest.mark.mount
def test_status_with_another_cachedir_names_the_mountpoint_and_suggests_no_takeover(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    program.environment["COLUMNS"] = "2000"
    words = ("status", "--cachedir", str(tmp_path / "other"))

    holder = json.loads(program.ok(*words, "--json", mounted.url, here=False))["holder"]
    shown = program.ok(*words, f"{mounted.url}/", here=False)

    assert (holder["mountpoint"], holder["this_host"]) == (str(mounted.mountpoint), False)
    assert f"which has it mounted on {mounted.mountpoint}" in shown
    assert f"s3fs-meta status {mounted.mountpoint}" in shown
    assert "--takeover" not in shown


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Path]:
    """Return a mountpoint for a read-only mount, which is unmounted after the test."""
    mountpoint = tmp_path / "reading"
    mountpoint.mkdir()
    yield mountpoint
    if mount_table.find(str(mountpoint)) is not None:
        subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=True)


@pytest.mark.mount
@pytest.mark.parametrize("options", ["ro", "ro,follow", "ro,at=txg=1"])
def test_status_does_not_show_a_read_only_mount_as_the_holder_of_the_lease(
    program: Program, mounted: Place, reading: Path, tmp_path: Path, options: str
) -> None:
    """The holder's local state is lost. A read-only mount on the same host is not the holder."""
    program.ok("flush", mounted.mountpoint)
    lose_host(program, mounted)
    program.ok("mount", "-o", options, mounted.url, reading)
    words = ("status", "--cachedir", str(tmp_path / "other"), "--json", mounted.url)

    found = json.loads(program.ok(*words, here=False))

    program.ok("umount", reading)
    assert found["holder"]["mountpoint"] is None
    assert "mount --takeover" in found["next"]


@pytest.mark.mount
def test_status_advises_fsck_for_a_damaged_bucket_that_is_mounted(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    for name in "abc":
        (mounted.mountpoint / name).write_bytes(b"x")
        program.ok("flush", mounted.mountpoint)
    (mounted.bucket / key_of(Txg(3))).unlink()
    words = ("status", "--cachedir", str(tmp_path / "other"), "--json", mounted.url)

    found = json.loads(program.run(*words, here=False).stdout)

    assert found["holder"]["mountpoint"] == str(mounted.mountpoint)
    assert found["faults"] == ["changelog 3 is missing"]
    assert found["next"].startswith("s3fs-meta fsck -n ")


@pytest.mark.mount
def test_status_names_a_missing_changelog_and_exits_with_12(
    program: Program, mounted: Place
) -> None:
    for name in "abc":
        (mounted.mountpoint / name).write_bytes(b"x")
        program.ok("flush", mounted.mountpoint)
    program.ok("umount", mounted.mountpoint)
    (mounted.bucket / key_of(Txg(3))).unlink()

    done = program.run("status", mounted.url)
    rows = table(program, mounted.url)

    assert done.returncode == ExitStatus.CORRUPTION
    assert rows["missing"] == "changelog 3 is missing"
    assert rows["newest state"].endswith("but the bucket has changelogs only up to txg 2")
    assert rows["next"] == f"s3fs-meta fsck -n --cachedir {program.cachedir} {mounted.url}"


def test_status_of_a_new_filesystem_reports_that_it_was_never_mounted(
    program: Program, place: Place
) -> None:
    rows = table(program, place.url)
    assert rows["lease"] == "free; no host has ever mounted the filesystem for writing"
    assert rows["last image"].endswith("0 changelogs after it")
    assert rows["size"] == "1 inode, 0 B, as of the last image"


def test_commands_in_the_facts_about_a_bucket_are_complete(program: Program, place: Place) -> None:
    """The texts come from modules that do not know the URL and the cachedir."""
    intact = table(program, place.url)
    (place.bucket / "lease").write_bytes(b"")
    damaged = table(program, place.url)
    faults = json.loads(program.run("status", "--json", place.url).stdout)["faults"]

    where = f"--cachedir {program.cachedir} {place.url}"
    assert f"; s3fs-meta fsck -n {where} reads every changelog" in intact["missing"]
    assert f"; s3fs-meta fsck -y {where} makes a new lease" in damaged["missing"]
    assert damaged["missing"] == "; ".join(faults)


def test_status_without_the_passphrase_checks_only_object_keys(
    program: Program, empty: Place
) -> None:
    program.environment["S3FS_META_PASSPHRASE"] = "x"
    program.ok("mkfs", empty.url)
    proven = table(program, empty.url)
    program.environment["S3FS_META_PASSPHRASE"] = "y"
    wrong = program.run("status", empty.url)
    del program.environment["S3FS_META_PASSPHRASE"]
    unproven = table(program, empty.url)

    assert wrong.returncode == ExitStatus.PASSPHRASE
    assert proven["missing"].startswith("nothing of the last image")
    assert unproven["missing"].startswith("no name of an object (")
    assert "size" not in unproven


def test_status_exits_with_5_for_a_directory_without_a_filesystem(
    program: Program, tmp_path: Path
) -> None:
    for url in (f"local://{tmp_path}", f"local://{tmp_path}/missing"):
        done = program.run("status", url)
        assert done.returncode == ExitStatus.NO_FILESYSTEM
        assert url in done.stderr


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "less than a second ago"),
        (59 * S, "59 s ago"),
        (3 * 3600 * S + 12 * 60 * S + 5 * S, "3 h 12 min ago"),
        (86_400 * S + 5 * S, "1 d 5 s ago"),
        (-1, "in the future by this host's clock"),
    ],
)
def test_status_prints_an_age_with_at_most_two_units(time_ns: int, text: str) -> None:
    assert status_bucket.age(time_ns) == text
