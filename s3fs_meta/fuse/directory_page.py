"""Replies that list entries of a directory with their attributes.

Owns: the size limit of a reply, and the choice between a readable and an unreadable row.
Does not know: the directory, the positions of "." and "..", lookup counts.
"""

import struct

from s3fs_meta.fuse.convert import Converter
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.tables import dentries
from s3fs_meta.model import Attributes, Ino


class DirectoryPage:
    """The entries of a reply to READDIRPLUS, up to its maximum size."""

    def __init__(self, converter: Converter, ino: Ino, room_bytes: int) -> None:
        self._converter = converter
        self._ino = ino
        self._room_bytes = room_bytes
        self._entries: list[bytes] = []

    def content(self) -> bytes:
        """Return all added entries as one reply."""
        return b"".join(self._entries)

    def add(self, name: bytes, attributes: Attributes, position: int) -> bool:
        """Add an entry; return False without a change if the reply has no room for the entry."""
        entry = self._converter.dirent_out(name, attributes, position)
        if len(entry) > self._room_bytes:
            return False
        self._room_bytes -= len(entry)
        self._entries.append(entry)
        return True

    def add_rows(self, rows: list[Row]) -> int:
        """Add rows of ``Filesystem.read_directory_rows`` in order until the reply is full.

        Returns:
            The number of added rows.
        """
        dirent_of_row, entries = self._converter.dirent_of_row, self._entries
        before, room_bytes = len(entries), self._room_bytes
        for row in rows:
            try:
                entry = dirent_of_row(row)
            except (TypeError, ValueError, struct.error):
                name, cookie, attributes = dentries.listed(self._ino, row)
                entry = self._converter.dirent_out(name, attributes, cookie)
            if len(entry) > room_bytes:
                break
            room_bytes -= len(entry)
            entries.append(entry)
        self._room_bytes = room_bytes
        return len(entries) - before
