"""Operations that a locked inode refuses."""

import pytest

from s3fs_meta.errors import NotPermittedError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.protection import require_changeable, require_unprotected
from s3fs_meta.model import InodeFlag
from tests.fs.conftest import look, make_file


async def test_only_the_lock_flag_protects(fs: Filesystem) -> None:
    """Only the flag LOCKED, and no other flag, protects."""
    make_file(fs, b"f")
    row = look(fs, b"f")._replace(flags=InodeFlag.HAS_XATTRS | InodeFlag.HOLDS_LOCKED)
    require_changeable(row)
    require_unprotected(row)
    for flag in (InodeFlag.LOCKED, InodeFlag.IMMUTABLE):
        for check in (require_changeable, require_unprotected):
            with pytest.raises(NotPermittedError):
                check(row._replace(flags=row.flags | flag))


async def test_append_only_inode_can_only_grow(fs: Filesystem) -> None:
    """An append-only inode accepts only growth."""
    make_file(fs, b"f")
    row = look(fs, b"f")._replace(flags=InodeFlag.APPEND_ONLY)
    require_changeable(row)
    with pytest.raises(NotPermittedError):
        require_unprotected(row)
