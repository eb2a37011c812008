"""The restore command, which copies files of a point in time to a directory."""

import json
import os
import random
import shutil
import stat
import struct
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.end_to_end.contents import facts
from tests.programs import Program

MIB = 1 << 20


def make_tree(root: Path) -> None:
    """Create a tree with at least one entry of each file type."""
    (root / "d" / "deep").mkdir(parents=True)
    (root / "d" / "deep" / "file").write_bytes(random.Random(1).randbytes(3 * MIB + 5))
    os.link(root / "d/deep/file", root / "second name")
    with (root / "sparse").open("wb") as file:
        file.seek(5 * MIB)
        file.write(b"end")
    (root / "link").symlink_to("d/deep/file")
    os.mkfifo(root / "fifo", 0o640)
    for number in range(50):
        (root / "d" / f"small {number}").write_bytes(b"%d" % number * 300)
    os.setxattr(root / "sparse", "user.colour", b"blue")
    os.chmod(root / "sparse", 0o4751)
    os.utime(root / "link", ns=(1, 10**18 + 3), follow_symlinks=False)
    os.utime(root / "d" / "small 1", ns=(1, 10**18 + 7))
    if os.geteuid() == 0:
        os.mknod(root / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.chown(root / "d", 1234, 5678)
        os.lchown(root / "link", 12, 34)
    os.utime(root / "d", ns=(1, 10**18 + 9))


def set_acl(path: Path) -> None:
    """Set an ACL in the kernel's binary form that lets user 1000 read a file."""
    entries = [(1, 6, -1), (2, 4, 1000), (4, 4, -1), (16, 4, -1), (32, 0, -1)]
    body = b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr(path, "system.posix_acl_access", struct.pack("<I", 2) + body)


@pytest.mark.mount
def test_restore_command_copies_all_files_and_properties(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """While the filesystem is mounted, a restore at a txg copies all files and properties.

    A host without local state restores single paths.
    """
    mnt, out = mounted.mountpoint, tmp_path / "out"
    make_tree(mnt)
    set_acl(mnt / "d" / "small 2")
    program.ok("flush", mnt)
    expected, txg = facts(mnt), program.status(mnt)["chain"]["txg"]
    shutil.rmtree(mnt / "d")
    (mnt / "sparse").write_bytes(b"overwritten")
    program.ok("flush", mnt)
    states = sorted(os.listdir(program.cachedir))

    answer = json.loads(
        program.ok("restore", "--json", "--at", f"txg={txg}", "--to", out, mounted.url)
    )

    assert facts(out) == expected
    assert (answer["txg"], answer["files"], answer["incomplete"]) == (txg, 52, [])
    assert answer["refused"] == {}
    assert (out / "sparse").stat().st_blocks * 512 < MIB
    assert sorted(os.listdir(program.cachedir)) == states
    elsewhere = Program(tmp_path / "elsewhere")
    printed = elsewhere.ok("restore", "--to", tmp_path / "now", mounted.url, "sparse", "link")
    assert sorted(os.listdir(tmp_path / "now")) == ["link", "sparse"]
    assert (tmp_path / "now" / "sparse").read_bytes() == b"overwritten"
    assert printed.startswith("copied 1 file, 11 B, of txg ")
    assert os.listdir(elsewhere.cachedir) == []


@pytest.mark.mount
def test_restore_command_without_privileges_omits_suid_bits_and_device_nodes(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """With --no-privileges, restore omits and reports suid bits, sgid bits and device nodes."""
    mnt, out = mounted.mountpoint, tmp_path / "out"
    make_tree(mnt)
    program.ok("flush", mnt)

    said = program.ok("restore", "--no-privileges", "--to", out, mounted.url)

    assert stat.S_IMODE((out / "sparse").stat().st_mode) == 0o751
    assert (out / "fifo").is_fifo()
    assert not (out / "null").exists()
    assert "set-user-ID and set-group-ID bits (1)" in said
    assert (out / "d" / "deep" / "file").samefile(out / "second name")


@pytest.mark.mount
def test_restore_command_writes_a_hole_for_lost_content_and_reports_the_range(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """For lost content, restore exits with 12, prints the range and copies all other files."""
    (mounted.mountpoint / "bad").write_bytes(random.Random(2).randbytes(100_000))
    (mounted.mountpoint / "long").write_bytes(random.Random(3).randbytes(3_000_000))
    (mounted.mountpoint / "empty").touch()
    program.ok("umount", mounted.mountpoint)
    for pack in (mounted.bucket / "pack").rglob("*-*"):
        pack.unlink()

    done = program.run("restore", "--to", tmp_path / "out", mounted.url)

    assert done.returncode == 12
    assert "  bytes 0-99999 are missing in 'bad'" in done.stdout.splitlines()
    assert "  bytes 0-2999999 are missing in 'long'" in done.stdout.splitlines()
    assert done.stderr == ""
    assert (tmp_path / "out" / "bad").read_bytes() == bytes(100_000)
    assert (tmp_path / "out" / "empty").exists()


@pytest.mark.mount
def test_restore_to_a_full_disk_reports_that_the_copy_is_incomplete(
    program: Program, mounted: Place, small_disk: Path
) -> None:
    (mounted.mountpoint / "large").write_bytes(random.Random(4).randbytes(3 * MIB))
    program.ok("umount", mounted.mountpoint)
    out = small_disk / "out"

    done = program.run("restore", "--to", out, mounted.url)

    assert done.returncode == ExitStatus.LOCAL
    assert done.stderr.splitlines() == [
        f"s3fs-meta: the copy in {out} is not complete; remove it before you run restore again",
        f"s3fs-meta: {out}/large: No space left on device",
    ]


def test_impossible_restore_is_refused_before_any_change(
    program: Program, place: Place, tmp_path: Path
) -> None:
    """Restore refuses an invalid time, a missing txg or path, and a target with files."""
    words, out = ["restore", place.url], tmp_path / "out"

    assert program.run(*words, "--to", out, "--at", "10x").returncode == 2
    assert program.run(*words, "--to", out, "--at", "unknown").returncode == 3
    assert program.run(*words, "--to", out, "--at", "txg=7").returncode == 3
    done = program.run(*words, "x", "--to", out)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "'x' did not exist at that point in time" in done.stderr
    assert not out.exists()
    out.mkdir()
    (out / "x").touch()
    assert program.run(*words, "--to", out).returncode == 2


@pytest.mark.mount
def test_restore_command_reports_paths_that_are_too_long_as_refused(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """A path that is too long does not mean damage, so restore does not exit with 12."""
    at = os.open(mounted.mountpoint, os.O_RDONLY)
    for _ in range(17):
        os.mkdir("d" * 255, dir_fd=at)
        below = os.open("d" * 255, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    (mounted.mountpoint / "f").touch()
    program.ok("flush", mounted.mountpoint)

    done = program.run("restore", "--to", tmp_path / "out", mounted.url)

    assert done.returncode == ExitStatus.LOCAL, done.stderr
    assert "is longer than" in done.stdout
    assert (tmp_path / "out" / "f").exists()
