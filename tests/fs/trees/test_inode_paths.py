"""Tests of the paths of inodes that are read from a snapshot."""

from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.trees import inode_paths
from s3fs_meta.model import ROOT_INO, Ino
from tests.fs.conftest import make_directory, make_file


async def test_inode_paths_include_uncommitted_changes(fs: Filesystem) -> None:
    """Paths include names that are not committed yet. A removed inode has no path."""
    top = make_directory(fs, b"top")
    ino, gone = make_file(fs, b"\xff", top), make_file(fs, b"gone")
    fs.namespace.unlink(ROOT_INO, b"gone")

    assert await inode_paths.path_of(fs.db, ino) == b"top/\xff"
    assert await inode_paths.path_of(fs.db, ROOT_INO) == b""
    assert await inode_paths.path_of(fs.db, gone) is None
    assert await inode_paths.path_of(fs.db, Ino(99)) is None
    assert await inode_paths.texts_of(fs.db, [gone, ino, top]) == ["/top/\\xff", "/top"]
