"""Copies of complete trees, from the present or the past: each statement copies many rows.

Owns: the temporary tables of a running copy, and the new rows.
Does not know: cached blocks, the size of a slice, the later name of the copy.
A copy is built below a *top*, the nameless directory of a removed tree (``removed_trees``). Until
the copy gets its name, it counts as a removed tree, so an interrupted copy is deleted like one.
Keeps: at every commit, the counters are correct. The sizes and link counts in the copy are also
correct, except nlink of the top.

    copied_names   the names of the current slice; place (from 1) determines the new inode number
    copied_links   inodes with several names: old and new number, copied names (count), first parent

The first copied name of an inode creates its row. ``new`` is set only for inodes that may have
several names.
"""

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from s3fs_meta.meta.db.attached import PAST
from s3fs_meta.meta.db.counters import sum_of
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import xattrs
from s3fs_meta.meta.trees import bulk_records, past_content
from s3fs_meta.model import ROOT_INO, Attributes, Cookie, Ino, InodeFlag, Txg

_DIRECTORY: Final = 0o040000
_REGULAR: Final = 0o100000
_FILE_BYTES: Final = sum_of(f"CASE WHEN p.kind = {_REGULAR} THEN p.size_bytes END")
_SYMLINK: Final = 0o120000
_TYPE: Final = 0o170000
_KEPT_FLAGS: Final = InodeFlag.HAS_XATTRS

_TABLES: Final = (
    "CREATE TEMP TABLE IF NOT EXISTS copied_names (place INTEGER PRIMARY KEY, parent INTEGER,"
    " cookie INTEGER, name BLOB, old INTEGER, new INTEGER, kind INTEGER, size_bytes INTEGER,"
    " blocks INTEGER, flags INTEGER, is_shared INTEGER, is_left INTEGER)",
    "CREATE TEMP TABLE IF NOT EXISTS copied_links (old INTEGER PRIMARY KEY, new INTEGER,"
    " names INTEGER, parent INTEGER)",
    "CREATE INDEX IF NOT EXISTS temp.copied_names_shared ON copied_names (old) WHERE is_shared",
)
_CHOOSE: Final = (
    "INSERT INTO temp.copied_names SELECT NULL, json_extract(j.value, '$[1]'), d.cookie,"
    " CAST(d.name AS BLOB),"
    f" d.ino, NULL, i.mode & {_TYPE}, i.size_bytes, i.mapped_blocks, i.flags & {_KEPT_FLAGS},"
    f" i.nlink > 1 AND (i.mode & {_TYPE}) <> {_DIRECTORY}, 0"
    " FROM json_each(?) AS j CROSS JOIN {0}.dentries AS d"
    " ON d.parent = json_extract(j.value, '$[0]') AND d.cookie > json_extract(j.value, '$[2]')"
    " CROSS JOIN {0}.inodes AS i ON i.ino = d.ino LIMIT ?"
)
_CUT: Final = (
    "SELECT min(place) FROM (SELECT place, sum(CASE WHEN blocks <= ?1 THEN blocks ELSE 0 END)"
    " OVER (ORDER BY place) AS blocks FROM temp.copied_names) WHERE blocks > ?1"
)
# Copy a file without its blocks if one is not uploaded, or if they do not fit into a slice.
_LEAVE: Final = (
    "UPDATE temp.copied_names SET is_left = 1 WHERE blocks > ? OR (blocks AND EXISTS"
    " (SELECT 1 FROM block_map AS m CROSS JOIN blocks AS b ON b.block = m.block"
    " WHERE m.ino = copied_names.old AND b.hash IS NULL))"
)
_NEW: Final = "coalesce(p.new, p.place + ?1)"
_IS_FIRST: Final = "(p.new IS NULL OR p.new = p.place + ?1)"
_COPIED: Final = (
    "?2, i.ctime_ns + i.mtime_delta_ns - ?2, i.ctime_ns + i.atime_delta_ns - ?2, i.rdev"
)
_INODES: Final = (
    "INSERT INTO inodes SELECT p.place + ?1, i.mode,"
    f" CASE WHEN p.kind = {_DIRECTORY} THEN 2 ELSE 1 END, i.uid, i.gid,"
    f" CASE WHEN p.kind = {_DIRECTORY} THEN 0 ELSE i.size_bytes END,"
    f" CASE WHEN p.is_left THEN 0 ELSE i.mapped_blocks END, {_COPIED}, p.parent, p.flags, 0"
    f" FROM temp.copied_names AS p CROSS JOIN {{0}}.inodes AS i ON i.ino = p.old WHERE {_IS_FIRST}"
    " ORDER BY p.place"
)
_DENTRIES: Final = (
    f"INSERT INTO dentries SELECT p.parent, p.cookie, p.name, {_NEW}"
    " FROM temp.copied_names AS p ORDER BY p.place"
)
_PARTS: Final = (
    "INSERT INTO temp.past_parts SELECT p.place + ?1, m.block_index, m.block"
    f" FROM temp.copied_names AS p CROSS JOIN {PAST}.block_map AS m ON m.ino = p.old"
    f" WHERE p.blocks AND NOT p.is_left AND {_IS_FIRST} ORDER BY p.place"
)
_INODE_RECORDS: Final = bulk_records.new_inode("i")
_NEW_INODES: Final = "FROM inodes AS i WHERE i.ino > ?1 ORDER BY i.ino"
_DENTRY_RECORDS: Final = bulk_records.new_dentry("p", _NEW)
_NAMES: Final = "FROM temp.copied_names AS p"
_DIRECTORIES: Final = (
    "UPDATE inodes SET size_bytes = size_bytes + s.names,"
    " nlink = nlink + CASE WHEN nlink THEN s.directories ELSE 0 END FROM"
    f" (SELECT parent, count(*) AS names, sum(kind = {_DIRECTORY}) AS directories"
    " FROM temp.copied_names GROUP BY parent) AS s WHERE inodes.ino = s.parent"
)
_SHARED_MAP: Final = (
    " FROM temp.copied_names AS p CROSS JOIN block_map AS m ON m.ino = p.old"
    f" WHERE p.blocks AND NOT p.is_left AND {_IS_FIRST}"
)
_LINKS: Final = (
    "INSERT INTO temp.copied_links SELECT old, min(place) + ?, 0, parent FROM temp.copied_names"
    " WHERE is_shared GROUP BY old ON CONFLICT DO NOTHING",
    "UPDATE temp.copied_names SET new ="
    " (SELECT l.new FROM temp.copied_links AS l WHERE l.old = copied_names.old) WHERE is_shared",
)
_SHARED: Final = "(SELECT old FROM temp.copied_names WHERE is_shared)"
_COUNT_LINKS: Final = (
    # An inode with one name has no row in hard_links. Its second name also creates the row for the
    # first.
    "INSERT INTO hard_links SELECT l.new, l.parent, 1 FROM temp.copied_links AS l"
    f" WHERE l.names = 1 AND l.old IN {_SHARED}",
    "UPDATE temp.copied_links SET names = names + (SELECT count(*) FROM temp.copied_names AS p"
    f" WHERE p.is_shared AND p.old = copied_links.old) WHERE old IN {_SHARED}",
    "INSERT INTO hard_links SELECT p.new, p.parent, count(*) FROM temp.copied_names AS p"
    " CROSS JOIN temp.copied_links AS l ON l.old = p.old WHERE p.is_shared AND l.names > 1"
    " GROUP BY p.new, p.parent ON CONFLICT DO UPDATE SET names = names + excluded.names",
    "UPDATE inodes SET nlink = l.names FROM temp.copied_links AS l"
    f" WHERE inodes.ino = l.new AND l.old IN {_SHARED}",
)


class Origin(NamedTuple):
    """The state that contains the originals of a copy."""

    schema: str
    txg: Txg | None  # the txg of the point in time, or None for the present


LIVING: Final = Origin("main", None)


def past(txg: Txg) -> Origin:
    """Return a point in time as the origin of copies, while its database is attached."""
    return Origin(PAST, txg)


class SourceDirectory(NamedTuple):
    """A directory that is being copied."""

    old: Ino
    new: Ino
    after: Cookie  # cookie of the last copied name


class CopiedSlice(NamedTuple):
    """The result of copying one slice of a tree."""

    names: int
    left: list[SourceDirectory]  # directories that still have names to copy
    names_below: int  # total number of names in *directories*
    directories: list[SourceDirectory]  # new directories whose names are not copied yet
    # (old, new) inode numbers of files copied without blocks
    files: list[tuple[Ino, Ino]]
    revived: int = 0  # number of packs of the past that have live blocks again


class _Sums(NamedTuple):
    """Totals of the rows that the current slice of a copy creates."""

    inodes: int
    file_bytes: int
    symlinks: int
    flags: int
    blocks: int


def begin(db: Database) -> None:
    """Create or empty the temporary tables. Requires an open transaction."""
    for statement in _TABLES:
        db.all(statement)
    db.run("DELETE FROM temp.copied_names")
    db.run("DELETE FROM temp.copied_links")
    past_content.begin(db)


def copy_inode(db: Database, origin: Origin, source: Attributes, now_ns: int) -> Ino:
    """Copy an inode with its attributes, but without its entries or blocks.

    The copy has no name: a directory becomes a top, and any other inode becomes an orphan. Needs a
    transaction.
    """
    counters = db.counters
    new = counters.take_ino()
    is_directory = (source.mode & _TYPE) == _DIRECTORY
    flags = source.flags & _KEPT_FLAGS | (InodeFlag.REMOVED if is_directory else 0)
    db.inodes.run(
        "INSERT INTO inodes SELECT ?1, i.mode, 0, i.uid, i.gid, ?3, 0,"
        f" {_COPIED}, {ROOT_INO}, ?4, 0 FROM {origin.schema}.inodes AS i WHERE i.ino = ?5",
        (new, now_ns, 0 if is_directory else source.size_bytes, int(flags), source.ino),
    )
    xattrs_of = f"INSERT INTO main.xattrs SELECT ?1, name, value FROM {origin.schema}.xattrs"
    db.run(f"{xattrs_of} WHERE ino = ?2", (new, source.ino))
    if db.counters.xattr_bytes is not None:
        xattrs.add_bytes(db, xattrs.sum_bytes(db, "ino = ?", new))
    target_of = f"INSERT INTO main.symlinks SELECT ?1, target FROM {origin.schema}.symlinks"
    db.run(f"{target_of} WHERE ino = ?2", (new, source.ino))
    counters.inodes += 1
    if (source.mode & _TYPE) == _REGULAR:
        counters.file_bytes += source.size_bytes
    return new


def copy_names(
    db: Database,
    origin: Origin,
    sources: Sequence[SourceDirectory],
    now_ns: int,
    *,
    names_max: int,
    blocks_max: int,
) -> CopiedSlice:
    """Copy one slice of names in directories, with their inodes. Requires an open transaction.

    Args:
        db: the database, after ``begin``.
        origin: the state that contains the directories.
        sources: directories, in the order of copying.
        now_ns: ctime and birth time of the copies.
        names_max: at most this many names are copied.
        blocks_max: at most this many blocks are shared; a file with more is copied without blocks.

    Raises:
        PastUnavailableError: the content of a past file is unavailable; no row changed.
    """
    before = db.counters.next_ino - 1
    db.run("DELETE FROM temp.copied_names")
    count = db.inodes.run(_CHOOSE.format(origin.schema), (json.dumps(sources), names_max))
    if origin.txg is not None and _shares_hashes(db):
        db.note_shared_hash()
    is_all = count < names_max
    cut = db.one(_CUT, (blocks_max,)) if _has_too_much(db, blocks_max) else None
    if cut is not None and cut[0] is not None:
        is_all = False
        count -= db.run("DELETE FROM temp.copied_names WHERE place >= ?", (cut[0],))
    has_links = db.one("SELECT 1 FROM temp.copied_names WHERE is_shared LIMIT 1") is not None
    if has_links:
        db.run(_LINKS[0], (before,))
        db.run(_LINKS[1])
    revived = _copy_rows(db, origin, before, now_ns, blocks_max)
    if has_links:
        for statement in _COUNT_LINKS:
            db.inodes.run(statement)
    db.counters.next_ino += count
    left = [] if is_all else _left(db, sources)
    return CopiedSlice(count, left, *_to_go_on(db, before), revived)


def _shares_hashes(db: Database) -> bool:
    """Return whether a chosen name shares its hash with another name in its directory."""
    sql = "SELECT 1 FROM temp.copied_names WHERE cookie & 255 <> 0 LIMIT 1"
    return db.one(sql) is not None


def _has_too_much(db: Database, blocks_max: int) -> bool:
    """Return whether the chosen files have too many blocks. This query is faster than ``_CUT``."""
    row = db.one(
        "SELECT total(CASE WHEN blocks <= ?1 THEN blocks END) > ?1 FROM temp.copied_names",
        (blocks_max,),
    )
    return row is not None and bool(row[0])


def _copy_rows(db: Database, origin: Origin, before: int, now_ns: int, blocks_max: int) -> int:
    """Create the rows of a slice from the assigned numbers; return the number of revived packs."""
    sums = _sums(db, before)
    if sums.blocks:
        _choose_blocks(db, origin, before, blocks_max)
    with bulk_records.recorded(db) as made:
        db.inodes.run(_INODES.format(origin.schema), (before, now_ns))
        db.counters.dentries += db.run(_DENTRIES, (before,))
        if db.bulk_recorder is not None:
            made.append(bulk_records.records(db, "inodes", _INODE_RECORDS, _NEW_INODES, (before,)))
            made.append(bulk_records.records(db, "dentries", _DENTRY_RECORDS, _NAMES, (before,)))
    db.inodes.run(_DIRECTORIES)
    db.counters.inodes += sums.inodes
    db.counters.file_bytes += sums.file_bytes
    if sums.symlinks:
        db.run(
            "INSERT INTO main.symlinks SELECT p.place + ?1, s.target FROM temp.copied_names AS p"
            f" CROSS JOIN {origin.schema}.symlinks AS s ON s.ino = p.old"
            f" WHERE p.kind = {_SYMLINK} AND {_IS_FIRST}",
            (before,),
        )
    if sums.flags:
        db.run(
            "INSERT INTO main.xattrs SELECT p.place + ?1, x.name, x.value"
            f" FROM temp.copied_names AS p CROSS JOIN {origin.schema}.xattrs AS x ON x.ino = p.old"
            f" WHERE p.flags AND {_IS_FIRST}",
            (before,),
        )
        if db.counters.xattr_bytes is not None:
            xattrs.add_bytes(db, xattrs.sum_bytes(db, "ino > ?", before))
    if not sums.blocks:
        return 0
    if origin.txg is not None:
        return past_content.share(db)
    _share_blocks(db, before)
    return 0


def _choose_blocks(db: Database, origin: Origin, before: int, blocks_max: int) -> None:
    """Choose the files of a slice whose blocks are copied together with their names."""
    if origin.txg is None:
        db.run(_LEAVE, (blocks_max,))
        return
    db.run("UPDATE temp.copied_names SET is_left = 1 WHERE blocks > ?", (blocks_max,))
    past_content.clear(db)
    db.run(_PARTS, (before,))
    past_content.resolve(db, origin.txg)


def _sums(db: Database, before: int) -> _Sums:
    row = db.one(
        f"SELECT count(*), {_FILE_BYTES},"
        f" total(p.kind = {_SYMLINK}), total(p.flags), total(p.blocks)"
        f" FROM temp.copied_names AS p WHERE {_IS_FIRST}",
        (before,),
    )
    assert row is not None, "an aggregate query returns one row"
    return _Sums._make(row)


def _share_blocks(db: Database, before: int) -> None:
    """Map the copied files to the blocks of the originals."""
    db.run(
        f"INSERT INTO block_map SELECT p.place + ?1, m.block_index, m.block{_SHARED_MAP}", (before,)
    )
    db.run(
        "UPDATE blocks SET refs = refs + s.names FROM"
        f" (SELECT m.block AS block, count(*) AS names{_SHARED_MAP} GROUP BY m.block) AS s"
        " WHERE blocks.block = s.block",
        (before,),
    )


def _left(db: Database, sources: Sequence[SourceDirectory]) -> list[SourceDirectory]:
    """Return the directories that still have names to copy after the slice."""
    last = db.one("SELECT parent, cookie FROM temp.copied_names ORDER BY place DESC LIMIT 1")
    assert last is not None, "a full slice must have a name"
    at = [source.new for source in sources].index(last[0])
    return [sources[at]._replace(after=last[1]), *sources[at + 1 :]]


def _to_go_on(
    db: Database, before: int
) -> tuple[int, list[SourceDirectory], list[tuple[Ino, Ino]]]:
    directories = db.all(
        "SELECT p.old, p.place + ?1, p.size_bytes FROM temp.copied_names AS p"
        f" WHERE p.kind = {_DIRECTORY} AND p.size_bytes ORDER BY p.place",
        (before,),
    )
    files = db.all(
        f"SELECT p.old, p.place + ?1 FROM temp.copied_names AS p WHERE p.is_left AND {_IS_FIRST}",
        (before,),
    )
    return (
        sum(row[2] for row in directories),
        [SourceDirectory(old, new, Cookie(0)) for old, new, _names in directories],
        [(row[0], row[1]) for row in files],
    )


def directories_in(db: Database, parent: Ino) -> int:
    """Return the number of subdirectories that the last slice created in a directory."""
    row = db.one(
        f"SELECT count(*) FROM temp.copied_names WHERE parent = ? AND kind = {_DIRECTORY}",
        (parent,),
    )
    assert row is not None, "an aggregate query returns one row"
    return int(row[0])


def set_nlink_and_parent(db: Database, ino: Ino, parent: Ino, nlink: int) -> None:
    """Set nlink and parent of a copy that is about to get its name. Needs a transaction."""
    db.inodes.run(
        f"UPDATE inodes SET nlink = ?, parent = ?, flags = flags & ~{InodeFlag.REMOVED:d}"
        " WHERE ino = ?",
        (nlink, parent, ino),
    )
