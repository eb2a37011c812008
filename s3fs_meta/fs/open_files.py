"""Inodes that are open.

Owns: one record per open inode. Does not know: rows, FUSE.
A file handle is its inode number, so a handler finds the record with one look-up and handles need no
numbers; the record counts how often the inode is open.
"""

import time

from s3fs_meta.model import Ino


class OpenInode:
    """The state of an inode between its first open and its last release."""

    __slots__ = (
        "ahead_blocks",
        "asked_until",
        "finishes",
        "has_capability",
        "is_linkable",
        "known_blocks",
        "open_count",
        "read_position",
        "was_written",
    )

    def __init__(self) -> None:
        self.open_count = 0
        # Whether security.capability is set; None: not looked up yet. The kernel asks before
        # every write(2), so the answer must cost nothing.
        self.has_capability: bool | None = None
        # Where the last read ended: a read that begins near it is sequential. -1: none yet.
        self.read_position = -1
        # Blocks to read ahead; 0: no sequential reader.
        self.ahead_blocks = 0
        # Opened for writing: the kernel may hold dirty pages of it.
        self.was_written = False
        # It became immutable while open: dirty pages of the kernel are still accepted.
        self.finishes = False
        # Created without a name, it may be linked. Source: open(2), O_TMPFILE.
        self.is_linkable = False
        # Number of blocks that the kernel has cached in st_blocks; -1: unknown.
        self.known_blocks = -1
        # Read-ahead was requested up to this block, exclusive.
        self.asked_until = 0

    def forget_capability(self) -> None:
        """Look ``security.capability`` up again at the next request for it."""
        self.has_capability = None

    def shows_blocks(self, blocks: int) -> bool:
        """Note the number of blocks in a reply; return whether the kernel had cached another one."""
        is_news, self.known_blocks = self.known_blocks != blocks, blocks
        return is_news


class OpenFiles:
    """All open inodes of one mount."""

    def __init__(self) -> None:
        self._inodes: dict[Ino, OpenInode] = {}
        # Whether the kernel reports open and close. If not, a file counts as open from its first
        # read until the kernel forgets it; such a mount is read-only.
        self.are_reported = True
        # How many inodes may have dirty pages in the kernel, and since when there is at
        # least one, by the monotonic clock; None: there is none, because close(2) writes back.
        self.writing = 0
        self.writing_since_s: float | None = None

    def __len__(self) -> int:
        return len(self._inodes)

    def expect_reports(self, are_reported: bool) -> None:
        """Note whether the kernel reports open and close from now on."""
        self.are_reported = are_reported

    def find(self, ino: Ino) -> OpenInode | None:
        """Return the record of an open inode, or None when it is not open."""
        return self._inodes.get(ino)

    def being_read(self, ino: Ino) -> OpenInode | None:
        """Return the record of an inode that is being read."""
        record = self._inodes.get(ino)
        return record if record is not None or self.are_reported else self.opened(ino)

    def forgotten(self, ino: Ino) -> None:
        """Note that the kernel no longer uses an inode."""
        if not self.are_reported:
            self._inodes.pop(ino, None)

    def written(self) -> list[Ino]:
        """Return the inodes that were opened for writing."""
        return [ino for ino, record in self._inodes.items() if record.was_written]

    def any_between(self, first: Ino, last: Ino) -> bool:
        """Return whether an inode with a number in a range is open."""
        return any(first <= ino <= last for ino in self._inodes)

    def opened(self, ino: Ino, *, writes: bool = False, is_linkable: bool = False) -> OpenInode:
        """Count one more open, perhaps to write; return the record."""
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
        """Count one open less; return how many remain, 0 for an inode that was not open."""
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
