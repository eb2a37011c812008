"""The refusals that every change of an inode passes: what is protected stays as it is.

Owns: the checks. Does not know: how something becomes locked (``trees.lock``), immutable or
append-only (``inode_flags``).
"""

from typing import Final

from s3fs_meta.errors import NotPermittedError
from s3fs_meta.fs.open_files import OpenFiles
from s3fs_meta.model import Attributes, InodeFlag

_FIXED: Final = InodeFlag.LOCKED | InodeFlag.IMMUTABLE
_PROTECTED: Final = InodeFlag.PROTECTED


def require_changeable(attributes: Attributes) -> None:
    """Refuse to change a locked or immutable inode, or to add a name to it.

    Raises:
        NotPermittedError: it is locked or immutable.
    """
    if attributes.flags & _FIXED:
        raise NotPermittedError(f"inode {attributes.ino} is locked or immutable")


def require_writable(attributes: Attributes, open_files: OpenFiles) -> None:
    """As ``require_changeable``, for what the kernel may have taken before a file was immutable.

    Raises:
        NotPermittedError: it is locked, or was immutable when it was opened.
    """
    if attributes.flags & InodeFlag.IMMUTABLE and not attributes.flags & InodeFlag.LOCKED:
        record = open_files.find(attributes.ino)
        if record is not None and record.finishes:
            return
    require_changeable(attributes)


def require_unprotected(attributes: Attributes) -> None:
    """Refuse what an append-only inode does not allow, either.

    That is to take away content or names, to give it away or further names, and to change its
    mode and its attributes.

    Raises:
        NotPermittedError: it is locked, immutable or append-only.
    """
    if attributes.flags & _PROTECTED:
        raise NotPermittedError(f"inode {attributes.ino} is locked, immutable or append-only")
