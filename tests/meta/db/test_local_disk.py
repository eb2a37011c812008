"""Type and features of the disk that contains the database file."""

import os
from pathlib import Path

import pytest

from s3fs_meta.errors import UsageError
from s3fs_meta.meta.db import local_disk
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.local_disk import filesystem_type, refuse_wal_on_network
from s3fs_meta.meta.db.pragmas import Pragmas


def test_type_of_the_proc_filesystem_is_detected() -> None:
    """The proc filesystem has the same type number on every machine."""
    assert filesystem_type(Path("/proc")) == 0x9FA0


def test_missing_path_has_the_filesystem_type_of_its_nearest_existing_parent(
    tmp_path: Path,
) -> None:
    assert filesystem_type(tmp_path / "not" / "there" / "meta.db") == filesystem_type(tmp_path)


def test_wal_mode_is_accepted_on_a_local_disk(tmp_path: Path) -> None:
    refuse_wal_on_network(tmp_path / "meta.db")


def test_wal_mode_is_refused_on_a_network_filesystem(
    tmp_path: Path, properties: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network filesystem, no file is created, and the error names another journal mode."""
    monkeypatch.setattr(local_disk, "NETWORK_FILESYSTEMS", {filesystem_type(tmp_path): "NFS"})
    path = tmp_path / "meta.db"
    with pytest.raises(UsageError, match=r"journal_mode=wal does not work on NFS.*--cachedir"):
        Database.create(path, Pragmas(), properties)
    assert not path.exists()
    Database.create(path, Pragmas(journal_mode="truncate"), properties).close()
    with pytest.raises(UsageError, match="NFS"):
        Database.open(path, Pragmas())


def test_new_database_file_is_empty_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    """The database contains file names, so other users must not read it."""
    path = tmp_path / "meta.db"
    local_disk.create_empty(path)
    assert path.stat().st_size == 0
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        local_disk.create_empty(path)


def test_disk_that_does_not_support_the_nocow_flag_is_accepted(tmp_path: Path) -> None:
    """Only Btrfs knows the flag that disables copy-on-write; other disks are used without it."""
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert local_disk.set_nocow(fd) in {True, False}
    finally:
        os.close(fd)
    read_end, write_end = os.pipe()
    try:
        assert local_disk.set_nocow(write_end) is False
    finally:
        os.close(read_end)
        os.close(write_end)
