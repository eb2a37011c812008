"""Tests of a mount's directory as the upper layer of an overlay filesystem (overlayfs)."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Place

pytestmark = pytest.mark.mount


def _change(merged: Path) -> None:
    """Remove, rename, replace and write entries of the overlay's lower layer."""
    (merged / "gone").unlink()
    (merged / "old").rename(merged / "new")
    (merged / "kept").write_text("written")
    (merged / "d" / "f").unlink()
    (merged / "d").rmdir()
    (merged / "d").mkdir()


def test_mount_can_be_the_upper_layer_of_an_overlay(mounted: Place, tmp_path: Path) -> None:
    """A file removed through the overlay stays removed, and the lower layer is unchanged."""
    lower, merged = tmp_path / "lower", tmp_path / "merged"
    (lower / "d").mkdir(parents=True)
    merged.mkdir()
    for name in ("gone", "old", "kept", "d/f"):
        (lower / name).write_text("content")
    upper, work = mounted.mountpoint / "upper", mounted.mountpoint / "work"
    upper.mkdir()
    work.mkdir()
    layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
    done = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, merged], check=False)
    if done.returncode and b"overlay" not in Path("/proc/filesystems").read_bytes():
        pytest.skip("this kernel has no overlayfs")
    assert done.returncode == 0
    try:
        _change(merged)
        assert sorted(os.listdir(merged)) == ["d", "kept", "new"]
        assert os.listdir(merged / "d") == []
        assert (merged / "new").read_text() == "content"
    finally:
        subprocess.run(["umount", merged], check=True)
    for name in ("gone", "old"):
        found = os.lstat(upper / name)
        assert stat.S_ISCHR(found.st_mode)
        assert found.st_rdev == 0
    assert sorted(os.listdir(lower)) == ["d", "gone", "kept", "old"]
