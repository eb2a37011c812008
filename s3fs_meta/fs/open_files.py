"""Records of the open inodes.

Owns: the records of open inodes. Does not know: rows, FUSE.
A file handle is an inode number, so a handler finds the record by one lookup. The record counts
how often the inode is open.
"""

import time

from s3fs_meta.model import Ino


class OpenInode:
    """The state of an inode between its first open and its last release."""

    __slots__ = (
        "ahead_blocks",
        "finishes",
        "has_capability",
        "is_linkable",
        "known_blocks",
        "open_count",
        "read_position",
        "requested_until",
        "was_written",
    )

    def __init__(self) -> None:
        self.open_count = 0
        # True if security.capability is set, None if that is unknown.
        # The value is cached, because the kernel requests it before every write(2).
        self.has_capability: bool | None = None
        # Offset at which the last read ended, or -1 before the first read.
        # A sequential read starts near the end of the last read.
        self.read_position = -1
        # Number of blocks to read ahead; 0 if no process reads sequentially.
        self.ahead_blocks = 0
        # True if a process opened the inode for writing, so that the kernel may have dirty pages.
        self.was_written = False
        # True if the inode became immutable while open. Its dirty pages are still accepted.
        self.finishes = False
        # True if the inode was created without a name and may be linked (open(2), O_TMPFILE).
        self.is_linkable = False
        # Number of blocks according to st_blocks in the kernel's cache, or -1 if unknown.
        self.known_blocks = -1
        # Index of the first block of the file that read-ahead has not requested yet.
        self.requested_until = 0

    def forget_capability(self) -> None:
        """Reset the cached presence of ``security.capability``, because it changed."""
        self.has_capability = None

    def shows_blocks(self, blocks: int) -> bool:
        """Record the st_blocks sent to the kernel; return whether it has changed."""
        is_news, self.known_blocks = self.known_blocks != blocks, blocks
        return is_news


class OpenFiles:
    """The records of all open inodes in one mount."""

    def __init__(self) -> None:
        self._inodes: dict[Ino, OpenInode] = {}
        # False on read-only mounts: the kernel then reports neither open nor close.
        # If opens are not reported, a file counts as open from its first read until a FORGET.
        self.are_reported = True
        # Number of inodes that may have dirty pages in the kernel. close(2) writes all pages back.
        self.writing = 0
        # Monotonic time at which ``writing`` became positive, or None while ``writing`` is 0.
        self.writing_since_s: float | None = None

    def __len__(self) -> int:
        return len(self._inodes)

    def expect_reports(self, are_reported: bool) -> None:
        """Record whether the kernel reports open(2) and close(2) of files from now on."""
        self.are_reported = are_reported

    def find(self, ino: Ino) -> OpenInode | None:
        """Return the record of an open inode, or None if it is not open."""
        return self._inodes.get(ino)

    def being_read(self, ino: Ino) -> OpenInode | None:
        """Return the record of an inode to read, or None if it is not open.

        If opens are not reported, create a missing record.
        """
        record = self._inodes.get(ino)
        return record if record is not None or self.are_reported else self.opened(ino)

    def forgotten(self, ino: Ino) -> None:
        """Remove the record of an inode that the kernel no longer uses."""
        if not self.are_reported:
            self._inodes.pop(ino, None)

    def any_between(self, first: Ino, last: Ino) -> bool:
        """Return whether any inode from *first* to *last* is open."""
        return any(first <= ino <= last for ino in self._inodes)

    def opened(self, ino: Ino, *, writes: bool = False, is_linkable: bool = False) -> OpenInode:
        """Add 1 to the open count of an inode; return its record."""
        record = self._inodes.get(ino)
        if record is None:
            record = self._inodes[ino] = OpenInode()
            record.is_linkable = is_linkable
        record.open_count += 1
        if writes and not record.was_written:
            record.was_written = True
            if self.writing_since_s is None:
                self.writing_since_s = time.monotonic()
            self.writing += 1
        return record

    def closed(self, ino: Ino) -> int:
        """Subtract 1 from the open count of an inode; return the new count, at least 0."""
        record = self._inodes.get(ino)
        if record is None:
            return 0
        record.open_count -= 1
        if record.open_count <= 0:
            del self._inodes[ino]
            if record.was_written:
                self.writing -= 1
                if not self.writing:
                    self.writing_since_s = None
        return record.open_count
