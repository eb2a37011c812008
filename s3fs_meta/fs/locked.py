"""The refusal that every change of an inode passes: what is locked stays as it is.

Owns: the check. Does not know: how something becomes locked (``tree_lock``).
"""

from s3fs_meta.errors import NotPermittedError
from s3fs_meta.model import Attributes, InodeFlag


def require_unlocked(attributes: Attributes) -> None:
    """Refuse to change a locked inode, or a name in it.

    Raises:
        NotPermittedError: it is locked.
    """
    if attributes.flags & InodeFlag.LOCKED:
        raise NotPermittedError(f"inode {attributes.ino} is locked")
