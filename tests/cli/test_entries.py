"""From paths to names of a mount."""

import os
from pathlib import Path

import pytest

from s3fs_meta.cli import entries
from s3fs_meta.errors import NotMountedError, UsageError
from tests.cli.conftest import Place, Program


@pytest.mark.parametrize("path", ["/", ".", "..", "some/..", "missing", "missing/name"])
def test_path_that_is_no_name_is_refused(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing that could go."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        entries.existing(Path(path) if path != "some/.." else Path(f"{tmp_path}/.."), None)


def test_path_of_another_filesystem_is_refused(tmp_path: Path) -> None:
    """It is no mount of ours that could do anything."""
    (tmp_path / "f").touch()
    with pytest.raises(NotMountedError):
        entries.existing(tmp_path / "f", None)


@pytest.mark.mount
def test_names_are_found_through_links_and_links_themselves(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """As rm(1): links on the way are followed, one at the end is meant itself."""
    mnt = mounted.mountpoint
    (mnt / "d").mkdir()
    (mnt / "d" / "link").symlink_to("/")
    (tmp_path / "way").symlink_to(mnt / "d")
    found = entries.existing(tmp_path / "way" / "link", program.cachedir)

    assert found.place.url == mounted.url
    assert (found.parent, found.name) == ((mnt / "d").stat().st_ino, b"link")
    assert found.ino == os.lstat(mnt / "d" / "link").st_ino
    assert found.path == str(mnt / "d" / "link")


@pytest.mark.mount
def test_mountpoint_is_refused(program: Program, mounted: Place) -> None:
    """Neither it nor what it lies in can go."""
    for path in (mounted.mountpoint, mounted.mountpoint.parent):
        with pytest.raises(UsageError, match="is mounted on"):
            entries.existing(path, program.cachedir)


@pytest.mark.mount
def test_free_name_is_one_that_nothing_has(program: Program, mounted: Place) -> None:
    """In a directory that is there; a link that leads nowhere has its name."""
    mnt = mounted.mountpoint
    (mnt / "nowhere").symlink_to("missing")
    found = entries.free(mnt / "new", program.cachedir)

    assert (found.parent, found.name, found.ino) == (1, b"new", 0)
    for path in (mnt / "nowhere", mnt / "missing" / "new", mnt):
        with pytest.raises(UsageError):
            entries.free(path, program.cachedir)
