"""What is refused of a locked inode."""

import pytest

from s3fs_meta.errors import NotPermittedError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.locked import require_unlocked
from s3fs_meta.model import InodeFlag

from .conftest import look, make_file


async def test_only_the_lock_counts(fs: Filesystem) -> None:
    """Not the other flags."""
    make_file(fs, b"f")
    row = look(fs, b"f")
    require_unlocked(row._replace(flags=int(InodeFlag.HAS_XATTRS | InodeFlag.HOLDS_LOCKED)))
    with pytest.raises(NotPermittedError):
        require_unlocked(row._replace(flags=int(InodeFlag.HAS_XATTRS | InodeFlag.LOCKED)))
