"""Tests of finding the mount of a path, even if the file at the path was removed."""

from pathlib import Path

import pytest

from s3fs_meta.mount.requests.history_requests import past_path
from s3fs_meta.mount_errors import NotMountedError
from tests.cli.conftest import Place
from tests.programs import Program


@pytest.mark.mount
def test_path_of_a_past_file_is_split_at_its_mountpoint(
    program: Program, mounted: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mnt = mounted.mountpoint
    (mnt / "d").mkdir()
    (mnt / "d" / "link").symlink_to("elsewhere")
    (tmp_path / "to-mount").symlink_to(mnt)
    expected = {
        mnt / "d" / "link": [b"d", b"link"],
        mnt / "gone" / "x": [b"gone", b"x"],
        mnt / "d" / ".." / "f": [b"f"],
        tmp_path / "to-mount" / "d" / "f": [b"d", b"f"],
        mnt: [],
    }
    for path, names in expected.items():
        found = past_path(path, program.cachedir)
        assert (found.names, found.top, found.place.url) == (names, 1, mounted.url)
    with monkeypatch.context() as changed:
        changed.chdir(mnt / "d")
        assert past_path(Path("f"), program.cachedir).names == [b"d", b"f"]


def test_path_in_the_past_outside_all_mounts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotMountedError):
        past_path(tmp_path / "x" / "y", None)
