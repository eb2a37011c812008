"""Checks that refuse changes of locked, immutable and append-only inodes.

Owns: the checks. Does not know: how an inode becomes locked (``trees.lock``), immutable or
append-only (``inode_flags``).
"""

from typing import Final

from s3fs_meta.errors import NotPermittedError
from s3fs_meta.fs.open_files import OpenFiles
from s3fs_meta.model import Attributes, InodeFlag

_FIXED: Final = InodeFlag.LOCKED | InodeFlag.IMMUTABLE
_PROTECTED: Final = InodeFlag.PROTECTED


def require_changeable(attributes: Attributes) -> None:
    """Raise if an inode is locked or immutable, so that no change or new name is permitted.

    Raises:
        NotPermittedError: the inode is locked or immutable.
    """
    if attributes.flags & _FIXED:
        raise NotPermittedError(f"inode {attributes.ino} is locked or immutable")


def require_writable(attributes: Attributes, open_files: OpenFiles) -> None:
    """Raise if an inode is locked, or was already immutable when it was opened.

    If an open inode becomes immutable, the kernel may already have accepted writes to it.

    Raises:
        NotPermittedError: the inode is locked, or was immutable when it was opened.
    """
    if attributes.flags & InodeFlag.IMMUTABLE and not attributes.flags & InodeFlag.LOCKED:
        record = open_files.find(attributes.ino)
        if record is not None and record.finishes:
            return
    require_changeable(attributes)


def require_unprotected(attributes: Attributes) -> None:
    """Raise if an inode is locked, immutable or append-only.

    Call this before overwriting or truncating content, removing a name, adding a hard link, and
    changing the owner, the mode or extended attributes.

    Raises:
        NotPermittedError: the inode is locked, immutable or append-only.
    """
    if attributes.flags & _PROTECTED:
        raise NotPermittedError(f"inode {attributes.ino} is locked, immutable or append-only")
