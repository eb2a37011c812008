"""Tests of ``mount -o remount,ro`` and ``remount,rw``, with the real helper of mount(8)."""

import os
import subprocess
from pathlib import Path

import pytest

from s3fs_meta.mount.existing import mount_table
from tests.cli.conftest import Place
from tests.programs import QuickProgram

pytestmark = [pytest.mark.mount, pytest.mark.usefixtures("as_root")]

HELPER = "s3fs_meta.cli.mount_helper"


def _helper(
    program: QuickProgram, place: Place, options: str
) -> "subprocess.CompletedProcess[str]":
    words = f"{options},cachedir={program.cachedir}"
    return program.run(place.url, place.mountpoint, "-o", words, module=HELPER, here=False)


def _words(place: Place) -> frozenset[str]:
    """Return all flags that the kernel lists for a mount."""
    mounted = mount_table.find(str(place.mountpoint))
    assert mounted is not None
    flags = mount_table.flags_here(mounted)
    assert flags is not None
    return flags.mount | flags.filesystem


def test_remount_keeps_all_flags_except_read_only(mounted: Place, program: QuickProgram) -> None:
    file, before = mounted.mountpoint / "f", _words(mounted)
    file.write_bytes(b"content")

    done = _helper(program, mounted, "ro,remount,nosuid,nodev,relatime,user_id=0,group_id=0")

    assert done.returncode == 0, done.stderr
    assert before - {"rw"} | {"ro"} == _words(mounted)
    with pytest.raises(OSError, match="Read-only file system"):
        file.write_bytes(b"changed")
    assert file.read_bytes() == b"content"
    figures = program.status(mounted.mountpoint)
    assert (figures["read_only"], figures["kernel_read_only"]) == (False, True)

    done = _helper(program, mounted, "rw,remount")

    assert done.returncode == 0, done.stderr
    assert _words(mounted) == before
    file.write_bytes(b"changed")
    assert program.status(mounted.mountpoint)["kernel_read_only"] is False


def test_read_only_remount_fails_while_a_file_is_open_for_writing(
    mounted: Place, program: QuickProgram
) -> None:
    """A read-only remount also fails while a removed file is open for reading."""
    path = mounted.mountpoint / "f"
    with path.open("wb") as file:
        file.write(b"x")
        refused = _helper(program, mounted, "remount,ro")
        assert (refused.returncode, "open for writing" in refused.stderr) == (32, True)
    with path.open("rb") as file:
        path.unlink()
        assert _helper(program, mounted, "remount,ro").returncode == 32
    assert _helper(program, mounted, "remount,ro").returncode == 0


def test_read_only_remount_also_stops_changes_that_bypass_the_kernel(
    mounted: Place, program: QuickProgram
) -> None:
    """After a read-only remount, rm, clone and lock fail, and reads do not change the atime."""
    path = mounted.mountpoint / "f"
    path.write_bytes(b"content")
    os.utime(path, ns=(0, path.stat().st_mtime_ns))
    kernel: list[str | Path] = ["mount", "-i", "-o", "remount,ro", mounted.mountpoint]
    subprocess.run(kernel, check=True)
    assert program.status(mounted.mountpoint)["kernel_read_only"] is True

    copies = ("clone", path, path.with_name("g")), ("clone", "--at=now", path, path.with_name("g"))
    for words in ("rm", path), *copies, ("lock", path):
        refused = program.run(*words)
        assert (refused.returncode != 0, "remounted read-only" in refused.stderr) == (True, True)
    subprocess.run(["dd", f"if={path}", "of=/dev/null", "iflag=direct"], check=True)

    assert path.stat().st_atime_ns == 0
    assert _helper(program, mounted, "remount,rw").returncode == 0
    subprocess.run(["dd", f"if={path}", "of=/dev/null", "iflag=direct"], check=True)
    assert path.stat().st_atime_ns != 0
    program.ok("rm", path)


def test_rm_fails_if_the_kernel_has_remounted_the_filesystem_read_only(
    mounted: Place, program: QuickProgram
) -> None:
    path = mounted.mountpoint / "f"
    path.touch()
    subprocess.run(["mount", "-i", "-o", "remount,ro", mounted.mountpoint], check=True)

    refused = program.run("rm", path)

    assert "remounted read-only" in refused.stderr
    assert path.exists()


@pytest.mark.parametrize("word", ["commit=3", "noexec", "sync"])
def test_remount_error_names_an_option_that_cannot_change(
    mounted: Place, program: QuickProgram, word: str
) -> None:
    refused = _helper(program, mounted, f"remount,ro,{word}")

    assert refused.returncode == 1
    assert f"option {word!r}" in refused.stderr
    (mounted.mountpoint / "f").touch()


def test_remount_accepts_all_options_of_the_fstab_line(place: Place, program: QuickProgram) -> None:
    """A remount accepts all options of the fstab line, because mount(8) passes all of them."""
    options = "_netdev,nofail,allow_other,commit=2,noatime"
    done = _helper(program, place, options)
    assert done.returncode == 0, done.stderr

    done = _helper(program, place, f"rw,{options},ro,remount")

    assert done.returncode == 0, done.stderr
    assert "ro" in _words(place)
    program.ok("umount", place.mountpoint)


def test_mount_created_read_only_cannot_be_remounted_read_write(
    place: Place, program: QuickProgram
) -> None:
    """A mount with the option ro refuses remount,rw and accepts remount,ro."""
    program.ok("mount", "-o", "ro", place.url, place.mountpoint)

    refused = _helper(program, place, "remount,rw")

    assert (refused.returncode, "mounted with ro" in refused.stderr) == (1, True)
    assert _helper(program, place, "remount,ro").returncode == 0
    assert "ro" in _words(place)
    program.ok("umount", place.mountpoint)


def test_remount_with_another_url_is_refused(mounted: Place, program: QuickProgram) -> None:
    other = mounted._replace(url=mounted.url + "2")

    refused = _helper(program, other, "remount,ro")

    assert (refused.returncode, "is mounted on" in refused.stderr) == (1, True)
    nothing = mounted._replace(mountpoint=Path("/proc"))
    assert _helper(program, nothing, "remount,ro").returncode == 32
