"""Copying files out of a quarantined state.

Owns: reading content from cached blocks or from the bucket, and the order of creating names.
Does not know: the choice of files (``quarantine_list``), how files are created (``copier``).
"""

import contextlib
import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from s3fs_meta.cache.crash_safety.intent_log import LoggedPiece
from s3fs_meta.cache.crash_safety.intent_replay import needed_pieces, only_here, overlaid
from s3fs_meta.cache.crash_safety.recovery import content_before, through
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError
from s3fs_meta.export.copier import Copier, Tally
from s3fs_meta.export.quarantine_list import Names
from s3fs_meta.hashed_dir import NumberedDir
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_origins, cached_blocks, inodes
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.meta.tables.block_origins import Copy
from s3fs_meta.meta.tables.cached_blocks import unsynced_tails
from s3fs_meta.model import Attributes, BlockId, Ino
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.opening import end_marks
from s3fs_meta.sync.progress import Progress
from s3fs_meta.sync.uncached_reads import Content, FindOtherCopy, UncachedReader

_log = logging.getLogger(__name__)


class KeptContent:
    """Reads the blocks of a quarantined state from its block files, or from the bucket."""

    def __init__(
        self,
        db: Database,
        blocks: Path,
        store: ObjectStore,
        keyring: Keyring,
        find_other_copy: FindOtherCopy | None = None,
    ) -> None:
        """Prepare to read blocks.

        Args:
            db: the database of the quarantined state.
            blocks: the directory of its block files.
            store: the bucket.
            keyring: the keys of the filesystem.
            find_other_copy: finds content by its hash if the content at its location is lost.
        """
        self._db = db
        self._blocks = NumberedDir(blocks)
        if blocks.is_dir():  # the directory is missing if no block was cached
            self._blocks.gather()
        self._store = store
        self._keyring = keyring
        self._bucket = UncachedReader(db, store, keyring, find_other_copy)
        self._synced_bytes: dict[BlockId, int] = {}
        self._copies: dict[BlockId, Copy] = {}
        self._logged: dict[BlockId, list[LoggedPiece]] = {}
        # the quarantined state is a subdirectory of the state directory
        if end_marks.is_power_lost(db, db.path.parent.parent):
            self._synced_bytes = {row.block: row.synced_bytes for row in unsynced_tails(db)}
            self._copies = {row.block: row for row in block_origins.not_uploaded(db)}
            pieces = _logged_pieces(db, blocks)
            wanted = only_here(db, pieces)
            for piece in pieces:
                if piece.block in wanted:
                    self._logged.setdefault(piece.block, []).append(piece)
        self._not_logged = {
            block: copy for block, copy in self._copies.items() if block not in self._logged
        }

    async def read(self, wanted: Sequence[Located]) -> list[Content]:
        """Return the content of blocks, in the given order.

        After a power loss only synced content is reliable. If a block was never synced, and it
        replaced an earlier block, return the content of that earlier block, as a mount does.

        Raises:
            StoreError: the bucket cannot be reached.
        """
        return [await self._read_one(located) for located in wanted]

    async def _read_one(self, located: Located) -> Content:
        data = self._beginning(located.block, located.plain_bytes)
        if located.pack is not None:
            if self._keyring.block_hash(data) == located.hash:
                return Content(data, located.plain_bytes)
            (content,) = await self._bucket.read([located])
            return content
        copy = self._copies.get(located.block)
        if copy is None:
            synced_bytes = self._synced_bytes.get(located.block, located.plain_bytes)
            return Content(data, max(synced_bytes, self._logged_bytes(located.block)))
        copy = through(copy, self._not_logged)
        kept = await content_before(
            copy,
            self._db,
            self._beginning,
            self._keyring,
            self._store,
            durable_bytes=self._durable_bytes,
        )
        durable_bytes = max(len(kept), self._logged_bytes(located.block))
        data = self._with_logged(located.block, kept + data[len(kept) :])[: located.plain_bytes]
        return Content(data, min(durable_bytes, located.plain_bytes))

    def _durable_bytes(self, block: BlockId) -> int:
        return max(cached_blocks.synced_bytes(self._db, block), self._logged_bytes(block))

    def _logged_bytes(self, block: BlockId) -> int:
        """Return the offset at which a block's content in the intent log ends."""
        return max((piece.stop for piece in self._logged.get(block, ())), default=0)

    def _with_logged(self, block: BlockId, data: bytes) -> bytes:
        return overlaid(data, self._logged.get(block, ()))

    def _beginning(self, block: BlockId, length: int) -> bytes:
        """Return the first bytes of a cached block, with its content in the intent log applied.

        The result has *length* bytes, or fewer if the file and the log have fewer.
        """
        return self._with_logged(block, self._in_file(block, length))[:length]

    def _in_file(self, block: BlockId, length: int) -> bytes:
        """Return the first *length* bytes of a cached block's file, or all bytes of a shorter file."""
        try:
            fd = self._blocks.open(f"{block:x}", os.O_RDONLY)
        except OSError:
            return b""
        with open(fd, "rb") as file, contextlib.suppress(OSError):
            return file.read(length)
        return b""


async def copy_all(db: Database, inos: Sequence[Ino], copier: Copier, progress: Progress) -> Tally:
    """Copy inodes with all their names, and their parent directories.

    Symbolic links are created last, so that no file is written through a symbolic link.

    Raises:
        StoreError: the bucket cannot be reached.
        OSError: the target cannot be written.
    """
    names, tally = Names(db, set(inos)), Tally()
    made: set[bytes] = {b""}
    links: list[tuple[Attributes, bytes]] = []
    for done, ino in enumerate(inos, start=1):
        paths = names.paths(ino)
        for path in paths:
            if len(path) > copier.path_bytes_max:
                tally.refuse(path, f"its path is longer than {copier.path_bytes_max} bytes")
                continue
            with tally.noting_faults(path):
                attributes = inodes.get(db, ino)
                is_directory = stat.S_ISDIR(attributes.mode)
                _make_directories(copier, path if is_directory else os.path.dirname(path), made)
                if stat.S_ISLNK(attributes.mode):
                    links.append((attributes, path))
                elif not is_directory:
                    empty = copier.make(attributes, path, again=len(paths) > 1)
                    if empty is not None:
                        with tally.noting_faults(path, empty.links):
                            tally.add(await copier.fill(empty))
        progress("files", done, len(inos))
    for attributes, path in links:
        with tally.noting_faults(path):
            copier.make(attributes, path, again=attributes.nlink > 1)
    for ino, path in reversed(list(names.directories())):
        with tally.noting_faults(path):
            found = inodes.find(db, ino)
            if found is not None and path in made:
                copier.finish_directory(found, path)
    copier.finish(tally)
    return tally


def _make_directories(copier: Copier, path: bytes, made: set[bytes]) -> None:
    """Create a directory and its parents, if they do not exist."""
    missing: list[bytes] = []
    while path not in made:
        missing.append(path)
        path = os.path.dirname(path)
    for one in reversed(missing):
        copier.make_directory(one)
        made.add(one)


def _logged_pieces(db: Database, blocks: Path) -> list[LoggedPiece]:
    """Return the content in the intent log; without the log's key, that content counts as lost."""
    try:
        return needed_pieces(db, blocks)
    except FormatError as exc:
        _log.warning("the intent log cannot be read, its content is reported as lost: %s", exc)
        return []
