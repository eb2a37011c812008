"""Operations that locked, immutable and append-only inodes refuse."""

import pytest

from s3fs_meta.errors import NotPermittedError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.flags.protection import (
    require_changeable,
    require_unprotected,
    require_writable,
)
from s3fs_meta.fs.open_files import OpenFiles
from s3fs_meta.model import InodeFlag
from tests.fs.conftest import look, make_file


async def test_locked_and_immutable_inodes_are_protected(fs: Filesystem) -> None:
    """The flags HAS_XATTRS and HOLDS_LOCKED do not protect an inode."""
    make_file(fs, b"f")
    row = look(fs, b"f")._replace(flags=InodeFlag.HAS_XATTRS | InodeFlag.HOLDS_LOCKED)
    require_changeable(row)
    require_unprotected(row)
    for flag in (InodeFlag.LOCKED, InodeFlag.IMMUTABLE):
        for check in (require_changeable, require_unprotected):
            with pytest.raises(NotPermittedError):
                check(row._replace(flags=row.flags | flag))


async def test_append_only_inode_may_grow_but_not_be_overwritten_or_removed(fs: Filesystem) -> None:
    """The check before overwrites and removals refuses an append-only inode."""
    make_file(fs, b"f")
    row = look(fs, b"f")._replace(flags=InodeFlag.APPEND_ONLY)
    require_changeable(row)
    with pytest.raises(NotPermittedError):
        require_unprotected(row)


@pytest.mark.parametrize("became_immutable", [False, True])
async def test_file_that_became_immutable_while_open_accepts_cached_writes(
    fs: Filesystem, became_immutable: bool
) -> None:
    """The kernel may have accepted these writes before the flag was set.

    A lock still refuses them.
    """
    make_file(fs, b"f")
    row = look(fs, b"f")
    locked, immutable = (
        row._replace(flags=flag) for flag in (InodeFlag.LOCKED, InodeFlag.IMMUTABLE)
    )
    both = row._replace(flags=InodeFlag.LOCKED | InodeFlag.IMMUTABLE)
    open_files = OpenFiles()
    with pytest.raises(NotPermittedError):
        require_writable(immutable, open_files)

    open_files.opened(row.ino, writes=True).finishes = became_immutable
    require_writable(row, open_files)
    for protected in (locked, both):
        with pytest.raises(NotPermittedError):
            require_writable(protected, open_files)
    if became_immutable:
        require_writable(immutable, open_files)
    else:
        with pytest.raises(NotPermittedError):
            require_writable(immutable, open_files)
