"""Files of a state that was set aside, copied out: content from its blocks, else from the bucket.

Owns: making them, with names, modes, owners, times and attributes; saying what is missing.
Does not know: which are wanted (``kept_state``).
Keeps: nothing outside the target is written: links are made last, and no name is followed.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from s3fs_meta.cli.kept_state import Names
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import CorruptionError, ObjectMissingError, S3fsError
from s3fs_meta.hashed_dir import HashedDir
from s3fs_meta.meta import (
    block_map,
    inodes,
    local_state,
    packs,
    properties,
    symlinks,
    xattrs,
)
from s3fs_meta.meta.block_map import Located
from s3fs_meta.meta.cached import unsynced_tails
from s3fs_meta.meta.database import Database
from s3fs_meta.model import Attributes, BlockIndex, BlockState, Ino
from s3fs_meta.objects.contract import ObjectStore

_log = logging.getLogger(__name__)

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_BATCH: Final = 1000
_ONLY_HERE: Final = frozenset({BlockState.DIRTY, BlockState.SEALED})


class Copied(NamedTuple):
    """One file, and which bytes of it are not as they should be: first and last of each stretch."""

    path: bytes
    size_bytes: int
    missing: list[tuple[int, int]]  # a hole now
    unsure: list[tuple[int, int]]  # copied, but never synced before power was lost


class KeptFiles:
    """Copies what a database names into a directory."""

    def __init__(
        self, db: Database, blocks: Path, store: ObjectStore, keyring: Keyring, target: Path
    ) -> None:
        self._db = db
        self._blocks = HashedDir(blocks)
        self._store = store
        self._keyring = keyring
        self._target = os.fsencode(target)
        self._block_bytes = int(properties.get(db, "block_bytes"))
        self._synced_bytes = {}
        if _power_was_lost(db):
            self._synced_bytes = {row.block: row.synced_bytes for row in unsynced_tails(db)}
        self._links: list[tuple[Ino, bytes]] = []

    async def copy(self, ino: Ino, names: Names) -> Copied | None:
        """Copy one inode; return None for what is no file, or of no use outside.

        Raises:
            StoreError: the bucket cannot be reached.
            OSError: the target cannot be written.
        """
        attributes = inodes.get(self._db, ino)
        first, *others = names.paths(ino)
        if stat.S_ISDIR(attributes.mode):
            self._make_directory(first)
            return None
        self._make_directory(os.path.dirname(first))
        if stat.S_ISLNK(attributes.mode):
            self._links += [(ino, path) for path in (first, *others)]
            return None
        if not stat.S_ISREG(attributes.mode):
            _log.info("not copied, no file: %s", os.fsdecode(first))
            return None
        copied = Copied(first, attributes.size_bytes, [], [])
        await self._copy_content(self._place(first), attributes, copied)
        self._set_attributes(self._place(first), attributes)
        for path in others:
            self._make_directory(os.path.dirname(path))
            os.link(self._place(first), self._place(path), follow_symlinks=False)
        return copied

    def finish(self, names: Names) -> None:
        """Make the symbolic links, then give the directories their modes and times."""
        for ino, path in self._links:
            os.symlink(symlinks.target(self._db, ino), self._place(path))
        for ino, path in reversed(list(names.directories())):
            found = inodes.find(self._db, ino)
            if found is not None and os.path.isdir(self._place(path)):
                self._set_attributes(self._place(path), found)

    def _place(self, path: bytes) -> bytes:
        return os.path.join(self._target, path)

    def _make_directory(self, path: bytes) -> None:
        os.makedirs(self._place(path), mode=0o700, exist_ok=True)

    async def _copy_content(self, place: bytes, attributes: Attributes, copied: Copied) -> None:
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(fd, attributes.size_bytes)
            for index in self._indexes(attributes.ino):
                start = index * self._block_bytes
                located = block_map.locate(self._db, attributes.ino, index)
                if located is None:
                    continue
                data = await self._content(located)
                _write_all(fd, start, data)
                if len(data) < located.plain_bytes:
                    copied.missing.append((start + len(data), start + located.plain_bytes - 1))
                sure_bytes = self._sure_bytes(located)
                if sure_bytes < len(data):
                    copied.unsure.append((start + sure_bytes, start + len(data) - 1))
        finally:
            os.close(fd)

    def _sure_bytes(self, located: Located) -> int:
        """Return how much of a block is certain: after a loss of power what had been synced."""
        return self._synced_bytes.get(located.block, located.plain_bytes)

    def _indexes(self, ino: Ino) -> Iterator[BlockIndex]:
        after = BlockIndex(0)
        while batch := block_map.indexes_from(self._db, ino, after, _BATCH):
            yield from (index for index, _block in batch)
            after = BlockIndex(batch[-1][0] + 1)

    async def _content(self, located: Located) -> bytes:
        """Return the content of a block, or as much of its beginning as there is."""
        data = self._local(located)
        if located.state in _ONLY_HERE or located.pack is None:
            return data
        if self._keyring.block_hash(data) == located.hash:
            return data
        assert located.hash is not None, "an uploaded block has a hash"
        assert located.pack_offset is not None, "and a place in its pack"
        assert located.stored_bytes is not None, "with a length"
        try:
            key = packs.object_key(self._db, located.pack)
            stop = located.pack_offset + located.stored_bytes
            stored = await self._store.get_range(key, located.pack_offset, stop)
            return pack_codec.open_block(
                self._keyring,
                key,
                stored,
                located.pack_offset,
                located.plain_bytes,
                located.hash,
            )
        except (ObjectMissingError, CorruptionError) as exc:
            _log.warning("%s", exc)
            return b""

    def _local(self, located: Located) -> bytes:
        """Return what the local copy holds; nothing if there is none."""
        try:
            fd = self._blocks.open(f"{located.block:x}", os.O_RDONLY)
        except OSError:
            return b""
        with open(fd, "rb") as file, contextlib.suppress(OSError):
            return file.read(located.plain_bytes)
        return b""

    def _set_attributes(self, place: bytes, attributes: Attributes) -> None:
        """Give a copy what its inode says, as far as this user and that filesystem allow."""
        with contextlib.suppress(S3fsError):
            for name, value in xattrs.items(self._db, attributes.ino):
                with contextlib.suppress(OSError):
                    os.setxattr(place, name, value)
        with contextlib.suppress(PermissionError):
            os.chown(place, attributes.uid, attributes.gid)
        os.chmod(place, stat.S_IMODE(attributes.mode))
        os.utime(place, ns=(attributes.atime_ns, attributes.mtime_ns))


def _power_was_lost(db: Database) -> bool:
    """Return whether the last mount was cut off, and in another boot than this one."""
    if local_state.get(db, "clean") == "1":
        return False
    return local_state.get(db, "boot_id") != BOOT_ID.read_text().strip()


def _write_all(fd: int, offset: int, data: bytes) -> None:
    view = memoryview(data)
    while view:  # bounded: each round writes at least one byte or raises
        written = os.pwrite(fd, view, offset)
        offset += written
        view = view[written:]
