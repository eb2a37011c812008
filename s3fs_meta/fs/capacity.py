"""The size limit of the filesystem (option ``capacity``): reported by statfs, enforced on writes.

Owns: the number of bytes in use (content after deduplication, extended attributes), and the refusal
of changes that exceed it. Does not know: the local disk (``cache.disk_space``), the caller.
Extended attributes are counted only if a capacity is set, because counting takes time.
"""

from s3fs_meta.errors import NoSpaceLeftError
from s3fs_meta.limits import UNLIMITED_CAPACITY_BYTES
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import xattrs


class Capacity:
    """The size limit of one mounted filesystem, and the space in use."""

    def __init__(self, db: Database) -> None:
        self._db = db

    @property
    def limit_bytes(self) -> int:
        """Return the size of the filesystem that statfs reports."""
        return self._db.counters.capacity_bytes or UNLIMITED_CAPACITY_BYTES

    @property
    def free_bytes(self) -> int:
        """Return the free space that statfs reports."""
        counters = self._db.counters
        used_bytes = counters.block_bytes + (counters.xattr_bytes or 0)
        return max(self.limit_bytes - used_bytes, 0)

    def require(self, added_bytes: int) -> None:
        """Raise NoSpaceLeftError if a change adds more bytes than are free.

        A change that adds no bytes is always allowed.

        Raises:
            NoSpaceLeftError: the bytes do not fit into the capacity.
        """
        counters = self._db.counters
        if added_bytes <= 0 or not counters.capacity_bytes:
            return
        self.count()
        if added_bytes > self.free_bytes:
            raise NoSpaceLeftError(
                f"the filesystem would exceed its capacity of {counters.capacity_bytes} bytes"
            )

    def require_free(self, wanted_bytes: int) -> None:
        """Raise NoSpaceLeftError if a request needs more bytes than statfs reports as free.

        Raises:
            NoSpaceLeftError: fewer bytes are free.
        """
        self.count()
        if wanted_bytes > self.free_bytes:
            raise NoSpaceLeftError(
                f"the request needs {wanted_bytes} bytes, but only {self.free_bytes} bytes are free"
            )

    def require_kept(self) -> None:
        """Raise NoSpaceLeftError if the filesystem exceeds its capacity after a change.

        Call this after a change whose size is not known in advance.

        Raises:
            NoSpaceLeftError: more bytes are in use than the capacity allows.
        """
        counters = self._db.counters
        if not counters.capacity_bytes:
            return
        self.count()
        if counters.block_bytes + (counters.xattr_bytes or 0) > counters.capacity_bytes:
            raise NoSpaceLeftError(
                f"the filesystem would exceed its capacity of {counters.capacity_bytes} bytes"
            )

    def count(self) -> None:
        """Count the bytes of all extended attributes once, if a capacity is set."""
        if self._db.counters.capacity_bytes and self._db.counters.xattr_bytes is None:
            xattrs.count_bytes(self._db)
