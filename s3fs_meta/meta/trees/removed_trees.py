"""Trees of removed directories: deleting many rows with one statement.

Owns: the rows of removed trees, and their deletion. Does not know: which inodes programs use,
cached blocks, the size of a slice.
A *top* is a directory that was removed together with its content: it has no name, nlink 0 and the
flag REMOVED. Its entries still exist. When a top is deleted, its subdirectories become tops. So at
every commit all remaining inodes are below tops, and the index of orphans finds the tops.
Keeps: size_bytes of a top is the number of its entries. Slices do not rely on it. The counters, and
the link counts of inodes that have names outside the tree, are correct.
"""

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from s3fs_meta.errors import MetadataError
from s3fs_meta.limits import BLOCK_BYTES_MAX, DIRECTORY_DEPTH_MAX, PACK_BYTES_MAX
from s3fs_meta.meta.db.counters import sum_of
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.tables import inodes, packs, xattrs
from s3fs_meta.model import ROOT_INO, BlockId, Cookie, Ino, InodeFlag, PackId

_log = logging.getLogger(__name__)

# A plain file is a regular file with one name and no rows in other tables; most files are plain.
_IS_PLAIN: Final = (
    "(i.mode & 61440) = 32768 AND i.nlink = 1 AND i.mapped_blocks = 0"
    f" AND (i.flags & ~{InodeFlag.PROTECTED:d}) = 0"
)
# The number of entries of a directory, or 0 if it cannot be read.
_ENTRIES: Final = "CASE typeof(i.size_bytes) WHEN 'integer' THEN i.size_bytes ELSE 0 END"
_NAMES: Final = "dentries AS d LEFT JOIN inodes AS i ON i.ino = d.ino"
_COUNTS: Final = (
    f"SELECT d.parent, min(CASE WHEN {_IS_PLAIN} THEN i.ino END),"
    f" max(CASE WHEN {_IS_PLAIN} THEN i.ino END), count(CASE WHEN {_IS_PLAIN} THEN 1 END),"
    f" {sum_of(f'CASE WHEN {_IS_PLAIN} THEN i.size_bytes END')}, count(*)"
)
_TALLY: Final = f"{_COUNTS} FROM {_NAMES} WHERE d.parent = ?1"
_TALLY_MANY: Final = (
    f"{_COUNTS} FROM json_each(?) AS j CROSS JOIN dentries AS d ON d.parent = j.value"
    " LEFT JOIN inodes AS i ON i.ino = d.ino GROUP BY d.parent"
)
# The size of an inode, except that a directory with names never has the size 0.
_SIZE: Final = (
    "CASE WHEN i.size_bytes = 0 AND (i.mode & 61440) = 16384"
    " THEN EXISTS (SELECT 1 FROM dentries AS e WHERE e.parent = d.ino) ELSE i.size_bytes END"
)


def _number(value: str) -> str:
    """Return an SQL expression that is NULL if a value is not an integer."""
    return f"CASE typeof({value}) WHEN 'integer' THEN {value} END"


# A damaged name without the number of an inode is omitted; it is deleted like the other names.
_OTHER: Final = (
    f"SELECT d.parent, {_number('d.cookie')}, d.ino, {_number('i.mode')}, {_number('i.nlink')},"
    f" {_number(f'({_SIZE})')}, {_number('i.mapped_blocks')}, {_number('i.flags')}"
    f" FROM {_NAMES} WHERE d.parent = ?1 AND typeof(d.ino) = 'integer'"
)
_UNTIL: Final = " AND d.cookie <= ?2"
# Delete files by a range of inode numbers: for nearly consecutive numbers faster than by name.
_DELETE_RANGE: Final = (
    f"DELETE FROM inodes AS i WHERE i.ino BETWEEN ? AND ? AND i.parent = ? AND {_IS_PLAIN}"
)
_DELETE_PART: Final = (
    "DELETE FROM inodes AS i WHERE i.ino IN"
    f" (SELECT d.ino FROM dentries AS d WHERE d.parent = ? AND d.cookie <= ?) AND {_IS_PLAIN}"
)
_DELETE_MANY: Final = (
    "DELETE FROM inodes AS i WHERE i.ino IN (SELECT d.ino FROM json_each(?) AS j"
    f" CROSS JOIN dentries AS d ON d.parent = j.value) AND {_IS_PLAIN}"
)
_RANGE_FACTOR: Final = 4
_RANGE_MIN: Final = 32  # minimum number of files for one statement per directory
_MANY: Final = 40  # minimum number of directories that one statement handles together
_GIVEN: Final = "(SELECT value FROM json_each(?))"
_NUMBER_OF_NAMES: Final = (
    "SELECT j.value, (SELECT count(*) FROM (SELECT 1 FROM dentries WHERE parent = j.value LIMIT ?2))"
    " FROM json_each(?1) AS j"
)
# True for a row of blocks whose used values are valid, and whose pack has a row.
_IS_READABLE: Final = (
    "typeof(refs) = 'integer' AND refs > 0 AND typeof(plain_bytes) = 'integer'"
    f" AND plain_bytes BETWEEN 0 AND {BLOCK_BYTES_MAX}"
    " AND (pack IS NULL OR typeof(stored_bytes) = 'integer'"
    f" AND stored_bytes BETWEEN 0 AND {PACK_BYTES_MAX}"
    " AND EXISTS (SELECT 1 FROM packs WHERE packs.pack = blocks.pack))"
)
_MOVED_CTIME: Final = (
    "mtime_delta_ns = mtime_delta_ns + ctime_ns - ?1,"
    " atime_delta_ns = atime_delta_ns + ctime_ns - ?1,"
    " btime_delta_ns = btime_delta_ns + ctime_ns - ?1, ctime_ns = ?1"
)
_LOSE_LINKS: Final = f"UPDATE inodes SET nlink = nlink - ?2, {_MOVED_CTIME} WHERE ino = ?3"


class Scope(NamedTuple):
    """The names that one slice deletes: all names in several directories, or some in one."""

    parents: list[Ino]
    until: Cookie | None  # last cookie of the slice, or None for all names of the parents


class TopTally(NamedTuple):
    """The number of names that one slice deletes in a top, and of plain files among them."""

    parent: Ino
    first: Ino | None  # lowest inode number of the plain files
    last: Ino | None  # highest inode number of the plain files
    plain: int  # number of plain files in the directory
    plain_bytes: int
    names: int  # number of names, of all file types
    until: Cookie | None  # cookie of the last counted name, or None if all names were counted


class Name(NamedTuple):
    """One name in a removed directory, and its inode.

    The mode of an inode whose row is missing or unreadable is None.
    """

    parent: Ino
    cookie: Cookie | None  # None if the value is damaged
    ino: Ino
    mode: int | None
    nlink: int
    size_bytes: int
    mapped_blocks: int
    flags: int


class Freed(NamedTuple):
    """A block that was deleted because it had no references, and its location."""

    block: BlockId
    plain_bytes: int
    pack: PackId | None
    stored_bytes: int | None


class DroppedRefs(NamedTuple):
    """The result of ``drop_refs``."""

    freed: list[Freed]  # the deleted blocks; the caller deletes their cache files
    skipped: int  # number of blocks whose rows are missing or have invalid values


def mark_removed(db: Database, inos: Collection[Ino], now_ns: int) -> None:
    """Turn directories into tops of removed trees; the caller removes their names.

    Requires an open transaction.
    """
    db.inodes.run(
        f"UPDATE inodes SET nlink = 0, flags = flags | {InodeFlag.REMOVED:d}, {_MOVED_CTIME}"
        " WHERE ino IN (SELECT value FROM json_each(?2))",
        (now_ns, json.dumps(list(inos))),
    )


def tops(db: Database) -> dict[Ino, int]:
    """Return the tops of removed trees in ascending order, with the number of names in each."""
    sql = (
        f"SELECT i.ino, {_ENTRIES} FROM inodes AS i"
        f" WHERE i.nlink = 0 AND i.flags & {InodeFlag.REMOVED:d} ORDER BY i.ino"
    )
    return {row[0]: row[1] for row in db.inodes.all(sql)}


def scope(db: Database, parents: Sequence[Ino], names_max: int) -> Scope:
    """Return the first tops with at most *names_max* names in total, or a part of the first top."""
    chosen = complete(db, parents, names_max)
    if not chosen:
        return Scope([parents[0]], _position(db, parents[0], names_max))
    return Scope(chosen, None)


def complete(db: Database, parents: Sequence[Ino], names_max: int) -> list[Ino]:
    """Return the first directories with at most *names_max* names in total.

    The names are counted: a damaged size_bytes neither enlarges a slice nor leaves names behind.
    """
    chosen: list[Ino] = []
    counts = db.iterate(_NUMBER_OF_NAMES, (json.dumps(parents), names_max + 1))
    with contextlib.closing(counts):
        for ino, names in counts:
            names_max -= names
            if names_max < 0:
                break
            chosen.append(ino)
    return chosen


def _position(db: Database, parent: Ino, number: int) -> Cookie | None:
    """Return the cookie of the *number*-th name of a directory, or None if it has fewer names."""
    sql = "SELECT cookie FROM dentries WHERE parent = ? ORDER BY cookie LIMIT 1 OFFSET ?"
    row = db.one(sql, (parent, number - 1))
    return None if row is None else Cookie(row[0])


def tally(db: Database, within: Scope) -> list[TopTally]:
    """Count the names of each top in a slice; the result may omit tops without names."""
    if within.until is not None:
        rows = db.inodes.all(_TALLY + _UNTIL, (within.parents[0], within.until))
    elif len(within.parents) >= _MANY:
        rows = db.inodes.all(_TALLY_MANY, (json.dumps(within.parents),))
    else:
        rows = [row for parent in within.parents for row in db.inodes.all(_TALLY, (parent,))]
    return [TopTally._make((*row, within.until)) for row in rows if row[0] is not None]


def others(db: Database, parent: Ino, until: Cookie | None, *, plain: bool = False) -> list[Name]:
    """Return the names in a removed directory whose inodes are not plain files.

    Args:
        db: the database.
        parent: the top.
        until: the last cookie to return, or None for all names.
        plain: also return the names of plain files.
    """
    which = "" if plain else f" AND ({_IS_PLAIN}) IS NOT TRUE"
    if until is None:
        rows = db.inodes.all(_OTHER + which, (parent,))
    else:
        rows = db.inodes.all(_OTHER + _UNTIL + which, (parent, until))
    return [_name(row) for row in rows]


def _name(row: Row) -> Name:
    """Return a name; an inode with an unreadable row counts as missing, and stays for fsck."""
    is_readable = all(type(value) is int and value >= 0 for value in row[3:])
    return Name._make(row if is_readable else (*row[:3], None, 0, 0, 0, 0))


def delete_plain(db: Database, tallies: Iterable[TopTally]) -> None:
    """Delete the inodes of counted plain files, but not their names. Needs a transaction."""
    counters = db.counters
    small: list[Ino] = []
    for of in tallies:
        if of.first is None or of.last is None:
            continue
        counters.file_bytes -= of.plain_bytes
        if of.until is not None:
            counters.inodes -= db.inodes.run(_DELETE_PART, (of.parent, of.until))
        elif of.plain >= _RANGE_MIN and of.last - of.first < _RANGE_FACTOR * of.plain:
            counters.inodes -= db.inodes.run(_DELETE_RANGE, (of.first, of.last, of.parent))
        else:
            small.append(of.parent)
    if small:
        counters.inodes -= db.inodes.run(_DELETE_MANY, (json.dumps(small),))


def remove_names(db: Database, within: Scope) -> None:
    """Delete the dentries of one slice, and reduce the size of tops that keep names.

    Requires an open transaction.
    """
    if within.until is None:
        sql = f"DELETE FROM dentries WHERE parent IN {_GIVEN}"
        db.counters.dentries -= db.run(sql, (json.dumps(within.parents),))
        return
    parent = within.parents[0]
    sql = "DELETE FROM dentries WHERE parent = ? AND cookie <= ?"
    deleted = db.run(sql, (parent, within.until))
    db.counters.dentries -= deleted
    db.inodes.run("UPDATE inodes SET size_bytes = size_bytes - ? WHERE ino = ?", (deleted, parent))


def emptied_in_use(db: Database, inos: Collection[Ino]) -> None:
    """Turn empty tops that processes still use into ordinary orphans. Needs a transaction."""
    db.inodes.run(
        f"UPDATE inodes SET size_bytes = 0, flags = flags & ~{InodeFlag.REMOVED:d}"
        f" WHERE ino IN {_GIVEN}",
        (json.dumps(list(inos)),),
    )


def orphan(db: Database, inos: Collection[Ino], now_ns: int) -> None:
    """Turn inodes that processes still use into orphans. Requires an open transaction."""
    db.inodes.run(
        f"UPDATE inodes SET nlink = 0, {_MOVED_CTIME}"
        " WHERE ino IN (SELECT value FROM json_each(?2))",
        (now_ns, json.dumps(list(inos))),
    )


def delete(db: Database, inos: Collection[Ino], file_bytes: int) -> None:
    """Delete the rows of inodes. Requires an open transaction.

    Args:
        inos: inodes whose names, blocks, attributes and targets the caller deletes.
        file_bytes: total size of the regular files among *inos*.
    """
    if inos:
        sql = f"DELETE FROM inodes WHERE ino IN {_GIVEN}"
        db.counters.inodes -= db.inodes.run(sql, (json.dumps(list(inos)),))
        db.counters.file_bytes -= file_bytes


def delete_xattrs(db: Database, inos: Collection[Ino]) -> None:
    """Delete all extended attributes of inodes that the caller deletes. Needs a transaction."""
    if inos:
        given = json.dumps(list(inos))
        if db.counters.xattr_bytes is not None:
            xattrs.add_bytes(db, -xattrs.sum_bytes(db, f"ino IN {_GIVEN}", given))
        db.run(f"DELETE FROM xattrs WHERE ino IN {_GIVEN}", (given,))


def delete_targets(db: Database, inos: Collection[Ino]) -> None:
    """Delete the targets of symbolic links that the caller deletes. Needs a transaction."""
    if inos:
        db.run(f"DELETE FROM symlinks WHERE ino IN {_GIVEN}", (json.dumps(list(inos)),))


# --- release hard links ------------------------------------------------------------------------


def drop_links(db: Database, lost: Mapping[tuple[Ino, Ino], int]) -> None:
    """Subtract removed names from the rows of hard_links. Requires an open transaction.

    Args:
        lost: the number of removed names for each (inode, directory). ``lose_names`` updates nlink.
    """
    rows = [(ino, parent, count) for (ino, parent), count in lost.items()]
    db.run_many("DELETE FROM hard_links WHERE ino = ? AND parent = ? AND names <= ?", rows)
    db.run_many("UPDATE hard_links SET names = names - ?3 WHERE ino = ?1 AND parent = ?2", rows)


def lose_names(
    db: Database, lost: Mapping[Ino, int], before: Mapping[Ino, Name], now_ns: int
) -> None:
    """Reduce nlink of inodes that keep other names, after ``drop_links``. Needs a transaction."""
    db.inodes.run_many(_LOSE_LINKS, [(now_ns, count, ino) for ino, count in lost.items()])
    single = json.dumps([ino for ino, count in lost.items() if before[ino].nlink - count == 1])
    db.inodes.run(
        "UPDATE inodes SET parent = (SELECT h.parent FROM hard_links AS h WHERE h.ino = inodes.ino)"
        f" WHERE ino IN {_GIVEN}",
        (single,),
    )
    db.run(f"DELETE FROM hard_links WHERE ino IN {_GIVEN}", (single,))
    db.inodes.run(
        "UPDATE inodes SET parent ="
        " (SELECT min(h.parent) FROM hard_links AS h WHERE h.ino = inodes.ino)"
        f" WHERE ino IN {_GIVEN} AND nlink > 1 AND NOT EXISTS (SELECT 1 FROM hard_links AS h"
        " WHERE h.ino = inodes.ino AND h.parent = inodes.parent)",
        (json.dumps(list(lost)),),
    )


# --- release blocks ----------------------------------------------------------------------------


def unmap_all(db: Database, inos: Collection[Ino]) -> Counter[BlockId]:
    """Delete the block maps of deleted inodes; return the number of references to each block.

    A row with an invalid block number is deleted too, but counts as no reference. Requires an open
    transaction.
    """
    given = json.dumps(list(inos))
    sql = (
        f"SELECT block, count(*) FROM block_map WHERE ino IN {_GIVEN}"
        " AND typeof(block) = 'integer' GROUP BY block"
    )
    named: Counter[BlockId] = Counter(dict(db.all(sql, (given,))))
    db.run(f"DELETE FROM block_map WHERE ino IN {_GIVEN}", (given,))
    return named


def drop_refs(db: Database, named: Mapping[BlockId, int], kept: Collection[BlockId]) -> DroppedRefs:
    """Subtract references to blocks; delete blocks without references. Needs a transaction.

    A block whose row has invalid values keeps this row and its space until fsck -y.

    Args:
        named: number of references to subtract, by block.
        kept: blocks that are being uploaded; their rows are kept.
    """
    rows = db.all(
        "SELECT block, refs, plain_bytes, pack, stored_bytes FROM blocks"
        f" WHERE block IN {_GIVEN} AND {_IS_READABLE}",
        (json.dumps(list(named)),),
    )
    skipped = len(named) - len(rows)
    if skipped:
        _log.error(
            "%d blocks of removed files have invalid rows and keep their space; run s3fs-meta fsck -y",
            skipped,
        )
    freed = [
        Freed(block, plain_bytes, pack, stored_bytes)
        for block, refs, plain_bytes, pack, stored_bytes in rows
        if refs == named[block] and block not in kept
    ]
    deleted = {each.block for each in freed}
    db.run_many(
        f"UPDATE blocks SET refs = refs - ? WHERE block = ? AND {_IS_READABLE}",
        [(count, block) for block, count in named.items() if block not in deleted],
    )
    db.run(f"DELETE FROM blocks WHERE block IN {_GIVEN}", (json.dumps(list(deleted)),))
    db.counters.block_bytes -= sum(each.plain_bytes for each in freed)
    _drop_live_bytes(db, freed)
    return DroppedRefs(freed, skipped)


def without_refs(db: Database, among: Collection[BlockId]) -> list[BlockId]:
    """Return the given blocks without references."""
    sql = f"SELECT block FROM blocks WHERE block IN {_GIVEN} AND refs = 0"
    return [BlockId(row[0]) for row in db.all(sql, (json.dumps(list(among)),))]


def _drop_live_bytes(db: Database, freed: Iterable[Freed]) -> None:
    """Subtract deleted blocks from the live bytes of their packs."""
    died: Counter[PackId] = Counter()
    for each in freed:
        if each.pack is not None:
            died[each.pack] += each.stored_bytes or 0
    for pack, stored_bytes in died.items():
        packs.drop_live_bytes(db, pack, stored_bytes)


# --- lock trees --------------------------------------------------------------------------------


class Child(NamedTuple):
    """One name in a directory of a tree that is being locked or walked."""

    parent: Ino
    cookie: Cookie
    ino: Ino
    names: int  # number of names in a child directory; 0 for other children
    links: int  # number of names if the child has several names and is not locked yet; otherwise 0


def children(db: Database, of: Sequence[tuple[Ino, Cookie]], limit: int) -> list[Child]:
    """Return the next names in directories, at most *limit*.

    Args:
        of: directories in the order of the result, each with the last cookie to skip.
    """
    rows = db.inodes.all(
        "SELECT d.parent, d.cookie, d.ino,"
        " CASE WHEN (i.mode & 61440) = 16384 THEN i.size_bytes ELSE 0 END,"
        " CASE WHEN (i.mode & 61440) <> 16384 AND i.nlink > 1"
        f" AND NOT i.flags & {InodeFlag.LOCKED:d} THEN i.nlink ELSE 0 END"
        " FROM json_each(?) AS j CROSS JOIN dentries AS d"
        " ON d.parent = json_extract(j.value, '$[0]') AND d.cookie > json_extract(j.value, '$[1]')"
        " CROSS JOIN inodes AS i ON i.ino = d.ino LIMIT ?",
        (json.dumps(of), limit),
    )
    return [Child._make(row) for row in rows]


def lock(db: Database, inos: Collection[Ino]) -> None:
    """Set the flag LOCKED on inodes without changing times. Requires an open transaction."""
    locked = InodeFlag.LOCKED
    db.inodes.run(
        f"UPDATE inodes SET flags = flags | {locked} WHERE ino IN {_GIVEN} AND NOT flags & {locked}",
        (json.dumps(list(inos)),),
    )


def unmarked_parents(db: Database, inos: Collection[Ino]) -> list[Ino]:
    """Return the directories that need a mark, because they contain names of the given hard links.

    A mark is the flag HOLDS_LOCKED. A locked directory needs no mark, because its tree was marked
    when the tree was locked.
    """
    unmarked = InodeFlag.LOCKED | InodeFlag.HOLDS_LOCKED
    rows = db.inodes.all(
        "SELECT DISTINCT h.parent FROM json_each(?) AS j CROSS JOIN hard_links AS h"
        " ON h.ino = j.value CROSS JOIN inodes AS i ON i.ino = h.parent"
        f" WHERE NOT i.flags & {unmarked:d}",
        (json.dumps(list(inos)),),
    )
    return [row[0] for row in rows]


def mark_upwards(
    db: Database, waiting: list[Ino], count: int, *, depth_max: int = DIRECTORY_DEPTH_MAX
) -> bool:
    """Set the flag HOLDS_LOCKED on directories and on all directories above them, in slices.

    The flag is set from the top down. So whenever a directory has the flag, all directories above
    it have the flag, even if the process is killed between two slices. Requires an open
    transaction.

    Args:
        db: the database.
        waiting: the directories. Each call replaces this list by the remaining directories. Between
            two calls, directories may be moved or removed.
        count: the number of directories that one slice visits.
        depth_max: a limit for the number of directories above one directory. If this limit and the
            number of inodes are exceeded, the directories form a cycle.

    Returns:
        True if all directories have the flag.

    Raises:
        MetadataError: the directories form a cycle.
        NoInodeError: the parent of a directory that has a name does not exist.
    """
    for _ in range(count):
        if not waiting:
            return True
        row = inodes.find(db, waiting[-1])
        if row is not None and not row.flags & InodeFlag.HOLDS_LOCKED:
            has_parent = row.ino != ROOT_INO and row.nlink
            if has_parent and not inodes.get(db, row.parent).flags & InodeFlag.HOLDS_LOCKED:
                waiting.append(row.parent)
                if len(waiting) > 2 * max(depth_max, db.counters.inodes):
                    raise MetadataError("the parent directories form a cycle", row.ino)
                continue
            inodes.set_flag(db, row.ino, InodeFlag.HOLDS_LOCKED, on=True)
        waiting.pop()
    return not waiting
