"""Observations of the cache directory and of the bucket, in temporary tables of the database.

Owns: temporary tables with listings of the cache directory and the bucket, and with the results of
reading packs. With these tables, invariants about files and objects are SQL queries that use
bounded memory.
Does not know: the surveys (``survey``), which observations are faults (``invariants``).
"""

import enum
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from s3fs_meta.limits import FSCK_SUMS_CACHE_KIB
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.statements import Arguments
from s3fs_meta.model import BlockId, PackState

_TABLES: Final = """
-- Files in the cache directory whose names are block numbers.
CREATE TEMP TABLE IF NOT EXISTS seen_files (
    block INTEGER PRIMARY KEY NOT NULL, size_bytes INTEGER NOT NULL);
-- Other files in the cache directory, and unfinished block files; names may be no UTF-8.
CREATE TEMP TABLE IF NOT EXISTS seen_strays (path BLOB PRIMARY KEY NOT NULL) WITHOUT ROWID;
-- Dirty blocks that the block map has lost, although their rows count references.
CREATE TEMP TABLE IF NOT EXISTS seen_unmapped (block INTEGER PRIMARY KEY NOT NULL);
-- The listing of the bucket.
CREATE TEMP TABLE IF NOT EXISTS seen_objects (
    object_key TEXT PRIMARY KEY NOT NULL, size_bytes INTEGER NOT NULL) WITHOUT ROWID;
-- Packs that the listing must contain, because they were stored before it began.
CREATE TEMP TABLE IF NOT EXISTS seen_packs (pack INTEGER PRIMARY KEY NOT NULL);
-- Authentic packs without a row, from an epoch whose writer is fenced and cannot refer to them.
CREATE TEMP TABLE IF NOT EXISTS seen_unnamed (object_key TEXT PRIMARY KEY NOT NULL) WITHOUT ROWID;
-- Objects that do not provably belong to this filesystem; no repair deletes them.
CREATE TEMP TABLE IF NOT EXISTS seen_foreign (object_key TEXT PRIMARY KEY NOT NULL) WITHOUT ROWID;
-- Objects of kept images that are missing or damaged.
CREATE TEMP TABLE IF NOT EXISTS seen_image_faults (
    object_key TEXT PRIMARY KEY NOT NULL, why TEXT NOT NULL) WITHOUT ROWID;
-- Missing or damaged changelogs and their parts; past = 1: only earlier points in time need them.
CREATE TEMP TABLE IF NOT EXISTS seen_chain_faults (
    object_key TEXT PRIMARY KEY NOT NULL, past INTEGER NOT NULL, why TEXT NOT NULL) WITHOUT ROWID;
-- Index objects of the history that are damaged or contradict their changelogs.
-- The column doomed is 1 if fsck deletes the object at the end of this run.
CREATE TEMP TABLE IF NOT EXISTS seen_index_faults (
    object_key TEXT PRIMARY KEY NOT NULL, why TEXT NOT NULL, doomed INTEGER NOT NULL)
    WITHOUT ROWID;
-- Missing or damaged objects that kept points need, and kept points that are unreadable themselves.
CREATE TEMP TABLE IF NOT EXISTS seen_kept_faults (
    object_key TEXT NOT NULL, name TEXT NOT NULL, why TEXT NOT NULL,
    PRIMARY KEY (object_key, name)) WITHOUT ROWID;
-- Locations, from the indexes of packs, of blocks whose row is wrong.
CREATE TEMP TABLE IF NOT EXISTS seen_locations (
    block INTEGER PRIMARY KEY NOT NULL, object_key TEXT NOT NULL, object_bytes INTEGER NOT NULL,
    hash BLOB NOT NULL, plain_bytes INTEGER NOT NULL,
    pack_offset INTEGER NOT NULL, stored_bytes INTEGER NOT NULL);
-- Blocks that could not be read at the location in the index of a pack.
CREATE TEMP TABLE IF NOT EXISTS seen_not_there (
    object_key TEXT NOT NULL, block INTEGER NOT NULL, PRIMARY KEY (object_key, block))
    WITHOUT ROWID;
-- Blocks that were searched for in the index of every pack.
CREATE TEMP TABLE IF NOT EXISTS seen_searched (block INTEGER PRIMARY KEY NOT NULL);
-- Blocks that were fetched and do not match the hash or length in their rows.
CREATE TEMP TABLE IF NOT EXISTS seen_unreadable (
    block INTEGER PRIMARY KEY NOT NULL, why TEXT NOT NULL);
-- Locations that are missing or damaged in the bucket; an offset of -1 means the complete pack.
CREATE TEMP TABLE IF NOT EXISTS seen_damage (
    pack INTEGER NOT NULL, pack_offset INTEGER NOT NULL, PRIMARY KEY (pack, pack_offset))
    WITHOUT ROWID;
-- Damage marks whose locations were read without error.
CREATE TEMP TABLE IF NOT EXISTS seen_false_marks (name TEXT PRIMARY KEY NOT NULL) WITHOUT ROWID;
-- Fetched packs whose index is unreadable or incomplete.
CREATE TEMP TABLE IF NOT EXISTS seen_bad_indexes (
    pack INTEGER PRIMARY KEY NOT NULL, why TEXT NOT NULL);
-- Cached blocks whose content matches the hash in the row.
CREATE TEMP TABLE IF NOT EXISTS seen_intact_copies (block INTEGER PRIMARY KEY NOT NULL);
"""


_NAMES: Final = tuple(re.findall(r"seen_\w+(?= \()", _TABLES))


class Need(enum.Flag):
    """The preconditions that a run of fsck fulfils, or that the check of an invariant needs."""

    ROWS = 0  # the database is enough; no survey is needed
    UNMOUNTED = enum.auto()  # an unmounted filesystem, so no process has files open
    FILES = enum.auto()  # the survey of the cache directory (module survey.cache)
    OBJECTS = enum.auto()  # the listing of the bucket (module survey.bucket)
    CONTENT = enum.auto()  # the content of all packs (module survey.packs)
    CHAIN = enum.auto()  # the survey of the changelogs (module survey.chain)
    HISTORY = enum.auto()  # the survey of the history index (module survey.history)
    KEPT = enum.auto()  # the survey of the kept points (module survey.kept)


def _text(key: str) -> str:
    """Return a key as UTF-8 for SQLite; bytes that are not UTF-8 are escaped.

    Only files of other programs in the directory of a local store have keys that are not UTF-8.
    """
    return key.encode(errors="surrogateescape").decode(errors="backslashreplace")


class SeenLocation(NamedTuple):
    """One row of ``seen_locations``: a block's location, from the index of a pack."""

    block: BlockId
    object_key: str
    object_bytes: int
    hash: bytes
    plain_bytes: int
    pack_offset: int
    stored_bytes: int


class Evidence:
    """The temporary tables with observations of one fsck run, and the set of surveys made."""

    def __init__(self, db: Database) -> None:
        """Create the empty tables in *db*. No transaction may be open."""
        assert not db.in_group, "SQLite cannot change temp_store inside a transaction"
        self._db = db
        self.surveyed = Need.ROWS
        # Temporary tables are always on the disk, because they grow with the filesystem.
        db.all("PRAGMA temp_store = FILE")
        db.all(f"PRAGMA temp.cache_size = -{FSCK_SUMS_CACHE_KIB}")
        db.all(_TABLES)
        for table in _NAMES:
            db.all(f"DELETE FROM temp.{table}")

    def note_files(self, files: Iterable[tuple[BlockId, int]]) -> None:
        """Record block files and their sizes."""
        self._add("INSERT OR REPLACE INTO temp.seen_files VALUES (?, ?)", files)

    def note_strays(self, paths: Iterable[Path]) -> None:
        """Record files of the cache directory that are not block files."""
        rows = ((os.fsencode(path),) for path in paths)
        self._add("INSERT OR IGNORE INTO temp.seen_strays VALUES (?)", rows)

    def note_unmapped(self, blocks_query: str) -> None:
        """Record the dirty blocks that the block map has lost."""
        self._db.all(f"INSERT OR IGNORE INTO temp.seen_unmapped {blocks_query}")

    def note_packs(self, *, mounted: bool) -> None:
        """Record the rows of packs, whose objects must then be in the listing of the bucket.

        In a mounted filesystem only packs in state STORED are recorded, because the mount may
        upload other packs during the listing. In an unmounted filesystem all packs are recorded,
        because a repair may make any pack STORED.
        """
        where = f" WHERE state = {PackState.STORED:d}" if mounted else ""
        self._db.all(f"INSERT OR IGNORE INTO temp.seen_packs SELECT pack FROM packs{where}")

    def note_objects(self, objects: Iterable[tuple[str, int]]) -> None:
        """Record a page of the bucket's listing; a repeated key is recorded once."""
        rows = ((_text(key), size_bytes) for key, size_bytes in objects)
        self._add("INSERT OR REPLACE INTO temp.seen_objects VALUES (?, ?)", rows)

    def note_foreign(self, keys: Iterable[str]) -> None:
        """Record objects that do not provably belong to this filesystem."""
        rows = ((_text(key),) for key in keys)
        self._add("INSERT OR IGNORE INTO temp.seen_foreign VALUES (?)", rows)

    def note_unnamed(self, keys: Iterable[str]) -> None:
        """Record packs of this filesystem that have no row."""
        rows = ((key,) for key in keys)
        self._add("INSERT OR IGNORE INTO temp.seen_unnamed VALUES (?)", rows)

    def note_image_faults(self, faults: Iterable[tuple[str, str]]) -> None:
        """Record objects of kept images that are missing or damaged, with the reason."""
        self._add("INSERT OR IGNORE INTO temp.seen_image_faults VALUES (?, ?)", faults)

    def note_chain_faults(self, faults: Iterable[tuple[str, int, str]]) -> None:
        """Record faulty changelogs as (key, 1 if only past states need the object, reason)."""
        self._add("INSERT OR IGNORE INTO temp.seen_chain_faults VALUES (?, ?, ?)", faults)

    def note_index_faults(self, faults: Iterable[tuple[str, str]]) -> None:
        """Record index objects of the history that are damaged or wrong, with the reason."""
        self._add("INSERT OR IGNORE INTO temp.seen_index_faults VALUES (?, ?, 0)", faults)

    def note_kept_faults(self, faults: Iterable[tuple[str, str, str]]) -> None:
        """Record faulty objects of kept points as (key, name of the point, reason)."""
        self._add("INSERT OR IGNORE INTO temp.seen_kept_faults VALUES (?, ?, ?)", faults)

    def note_locations(self, locations: Iterable[SeenLocation]) -> None:
        """Record the locations that pack indexes contain for blocks with wrong rows.

        Locations that ``forget_locations`` removed are skipped. Of several locations of a block,
        the one with the hash in the block's row is kept. If there is none, a location in a pack
        with a row is preferred, because a fenced host may have used the block's number for other
        content.
        """
        self._add(
            "INSERT OR REPLACE INTO temp.seen_locations SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7"
            " WHERE NOT EXISTS (SELECT 1 FROM temp.seen_not_there"
            " WHERE object_key = ?2 AND block = ?1)"
            " AND NOT EXISTS (SELECT 1 FROM temp.seen_locations AS s JOIN blocks AS b"
            " ON b.block = s.block WHERE s.block = ?1 AND s.hash = b.hash)"
            " AND NOT EXISTS (SELECT 1 FROM temp.seen_locations AS s"
            " LEFT JOIN blocks AS b ON b.block = s.block WHERE s.block = ?1 AND b.hash IS NOT ?4"
            " AND s.object_key IN (SELECT object_key FROM packs)"
            " AND ?2 NOT IN (SELECT object_key FROM packs))",
            locations,
        )

    def forget_locations(self, object_key: str, blocks: Iterable[BlockId]) -> None:
        """Remove the locations of unreadable blocks in a pack; later calls cannot add them."""
        rows = [(object_key, block) for block in blocks]
        self._add("DELETE FROM temp.seen_locations WHERE object_key = ? AND block = ?", rows)
        self._add("INSERT OR IGNORE INTO temp.seen_not_there VALUES (?, ?)", rows)

    def note_searched(self, blocks_query: str) -> None:
        """Record that all packs were searched for the blocks that a query returns."""
        self._db.all(f"INSERT OR IGNORE INTO temp.seen_searched {blocks_query}")

    def forget_searched(self) -> bool:
        """Remove all records of searched blocks and verified copies; return whether any existed."""
        found = False
        for table in ("seen_searched", "seen_intact_copies"):
            found = bool(self._db.all(f"SELECT 1 FROM temp.{table} LIMIT 1")) or found
            self._db.all(f"DELETE FROM temp.{table}")
        return found

    def note_unreadable(self, blocks: Iterable[tuple[BlockId, str]]) -> None:
        """Record blocks that cannot be read from the store, each with the reason."""
        self._add("INSERT OR IGNORE INTO temp.seen_unreadable VALUES (?, ?)", blocks)

    def note_damage(self, query: str) -> None:
        """Record the locations that a query returns as missing or damaged in the bucket."""
        self._db.all(f"INSERT OR IGNORE INTO temp.seen_damage {query}")

    def note_damaged_records(self, pack: int, offsets: Iterable[int]) -> None:
        """Record the offsets of unreadable records in a pack."""
        rows = ((pack, offset) for offset in offsets)
        self._add("INSERT OR IGNORE INTO temp.seen_damage VALUES (?, ?)", rows)

    def note_false_marks(self, names: Iterable[str]) -> None:
        """Record damage marks whose locations were read without error."""
        rows = ((name,) for name in names)
        self._add("INSERT OR IGNORE INTO temp.seen_false_marks VALUES (?)", rows)

    def note_bad_indexes(self, packs: Iterable[tuple[int, str]]) -> None:
        """Record packs whose index is damaged, each with the reason."""
        self._add("INSERT OR IGNORE INTO temp.seen_bad_indexes VALUES (?, ?)", packs)

    def note_intact_copies(self, blocks: Iterable[BlockId]) -> None:
        """Record cached blocks whose content was verified."""
        rows = ((block,) for block in blocks)
        self._add("INSERT OR IGNORE INTO temp.seen_intact_copies VALUES (?)", rows)

    def _add(self, sql: str, rows: Iterable[Arguments]) -> None:
        self._db.all("SAVEPOINT evidence")  # a single savepoint for all rows halves the write time
        for row in rows:
            self._db.all(sql, row)
        self._db.all("RELEASE evidence")
