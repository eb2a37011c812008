"""Tests of the parser of the kernel's mount table."""

import os
from pathlib import Path

import pytest

from s3fs_meta.mount.existing import mount_table

_LINES = [
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw",
    "36 22 0:57 / /mnt/my\\040files rw,nosuid - fuse.s3fs-meta s3://b/p\\134x rw,user_id=0",
    "37 22 0:58 / /mnt/two rw shared:3 master:1 - fuse.sshfs host:/x rw",
]


def test_mount_table_with_optional_fields_is_parsed() -> None:
    """Optional fields of the mount table end before the dash. Escaped characters are decoded."""
    root, ours, other = mount_table.parse(_LINES)

    assert root.mountpoint == "/"
    assert ours == ("/mnt/my files", "0:57", "fuse.s3fs-meta", "s3://b/p\\x")
    assert other.fs_type == "fuse.sshfs"


@pytest.mark.parametrize("character", ["\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\udcff"])
def test_path_in_the_mount_table_may_contain_unusual_line_breaks(character: str) -> None:
    """A path with unusual line breaks does not hide later mounts in the table."""
    odd = _LINES[0].replace(" / / ", f" / /a{character}b ")
    content = os.fsencode("\n".join([odd, *_LINES[1:]]) + "\n")

    found = mount_table.parse(mount_table.lines(content))

    assert found[0].mountpoint == f"/a{character}b"
    assert found[1:] == mount_table.parse(_LINES[1:])


def test_mount_flags_belong_to_the_topmost_mount() -> None:
    """If several filesystems are mounted on one path, the last mount determines the flags."""
    ours = mount_table.parse(_LINES)[1]
    moved = ours._replace(mountpoint="/mnt/elsewhere")
    again = _LINES[1].replace("rw,nosuid", "ro,noexec").replace("rw,user_id=0", "ro,user_id=0")

    first = mount_table.flags(ours, _LINES)
    last = mount_table.flags(ours, [*_LINES, again])

    assert first == mount_table.Flags(frozenset({"rw", "nosuid"}), frozenset({"rw", "user_id=0"}))
    assert last == mount_table.Flags(frozenset({"ro", "noexec"}), frozenset({"ro", "user_id=0"}))
    assert mount_table.flags(moved, _LINES) is None
    assert mount_table.flags(moved, _LINES, anywhere=True) == first


def test_path_of_a_mount_is_resolved_without_access_to_the_mountpoint(tmp_path: Path) -> None:
    """A missing mountpoint is accepted, and so are symlinks anywhere in the path."""
    real = tmp_path / "real"
    (real / "mnt").mkdir(parents=True)
    (tmp_path / "link").symlink_to(real)
    (real / "relative").symlink_to("../link/mnt/")
    (real / "above").symlink_to("..")
    (tmp_path / "loop").symlink_to("loop")

    assert mount_table.resolve(tmp_path / "link" / "missing") == str(real / "missing")
    assert mount_table.resolve(tmp_path / "link" / "mnt") == str(real / "mnt")
    assert mount_table.resolve(tmp_path / "link" / "relative") == str(real / "mnt")
    assert mount_table.resolve(tmp_path / "link" / "above") == str(tmp_path)
    assert mount_table.resolve(tmp_path / "link") == str(real)
    assert mount_table.resolve(tmp_path / "loop").endswith("loop")
    assert mount_table.resolve(Path("/")) == "/"


def test_unmounted_path_is_not_in_the_mount_table(tmp_path: Path) -> None:
    assert mount_table.find(str(tmp_path)) is None


def test_mount_search_ignores_other_filesystem_types() -> None:
    """The search finds only mounts of s3fs-meta, so it does not find /proc."""
    assert mount_table.find("/proc") is None
    assert any(one.mountpoint == "/proc" for one in mount_table.read())


def test_mounts_that_a_path_passes_through_are_found_without_accessing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount at the end of a path is included only if the caller will access the path itself."""
    (tmp_path / "link").symlink_to("mnt/tree")
    (tmp_path / "loop").symlink_to("loop")
    mnt, inner = tmp_path / "mnt", tmp_path / "mnt" / "inner"
    ours = mount_table.Mounted(str(mnt), "0:57", mount_table.FS_TYPE, "s3://b/p")
    other = mount_table.Mounted(str(inner), "0:58", "ext4", "/dev/sda")
    monkeypatch.setattr(mount_table, "read", lambda: [ours, other])
    monkeypatch.chdir(tmp_path)

    for path, at_end, found in (
        ("mnt", False, []),
        ("mnt", True, [ours]),
        ("mnt/tree", False, [ours]),
        ("link", False, [ours]),
        ("link", True, [ours]),
        ("link/file", False, [ours]),
        ("mnt/../other/file", True, []),
        ("mnt/tree/../..", True, [ours]),
        ("mnt2/file", True, []),
        ("loop/file", True, []),
        ("mnt/inner/file", True, [ours]),
    ):
        entered = set(mount_table.entered(Path(path), at_end=at_end))
        assert entered == set(found), (path, at_end)
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    assert set(mount_table.entered(mnt, at_end=True)) == {ours}
