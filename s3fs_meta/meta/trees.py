"""Trees of removed directories: many rows with one statement.

Owns: what a removed tree is in rows, and taking it apart. Does not know: who uses an inode, local
copies of blocks, how much is done at once.
A directory that was removed together with what is in it has no name, nlink 0 and the flag REMOVED;
everything below it still hangs from its dentries. When a part of it is taken away, its directories
become such tops themselves, so that at every commit all that is left hangs from tops, which the
index of orphans finds.
Keeps: size_bytes of a top is the number of its entries; the counters; link counts of what has
names elsewhere.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from s3fs_meta.meta import packs
from s3fs_meta.meta.database import Database
from s3fs_meta.model import BlockId, Cookie, Ino, InodeFlag, PackId

# A regular file with one name, and nothing else to care for: most of what trees have.
_IS_PLAIN: Final = (
    "(i.mode & 61440) = 32768 AND i.nlink = 1 AND i.mapped_blocks = 0 AND i.flags = 0"
)
_NAMES: Final = (
    f"SELECT d.parent, d.cookie, d.ino, CASE WHEN {_IS_PLAIN} THEN i.size_bytes ELSE -1 END"
    " FROM json_each(?) AS j CROSS JOIN dentries AS d ON d.parent = j.value"
    " LEFT JOIN inodes AS i ON i.ino = d.ino LIMIT ?"
)
_GIVEN: Final = "(SELECT value FROM json_each(?))"
_OTHERS: Final = (
    f"SELECT ino, mode, nlink, size_bytes, mapped_blocks, flags FROM inodes WHERE ino IN {_GIVEN}"
)
_MOVED_CTIME: Final = (
    "mtime_delta_ns = mtime_delta_ns + ctime_ns - ?1,"
    " atime_delta_ns = atime_delta_ns + ctime_ns - ?1, ctime_ns = ?1"
)
_LOSE_LINKS: Final = f"UPDATE inodes SET nlink = nlink - ?2, {_MOVED_CTIME} WHERE ino = ?3"


class Name(NamedTuple):
    """One name in a removed directory."""

    parent: Ino
    cookie: Cookie
    ino: Ino
    plain_bytes: int  # length of a file that is plain; -1: see ``others``


class Other(NamedTuple):
    """What is known of an inode that is more than a plain file."""

    ino: Ino
    mode: int
    nlink: int
    size_bytes: int
    mapped_blocks: int
    flags: int


class Freed(NamedTuple):
    """A block that no file names any more, and where it was stored."""

    block: BlockId
    plain_bytes: int
    pack: PackId | None
    stored_bytes: int | None


def mark_removed(db: Database, inos: Collection[Ino], now_ns: int) -> None:
    """Make directories tops of removed trees; their names are the caller's. Inside a group."""
    db.run(
        f"UPDATE inodes SET nlink = 0, flags = flags | {InodeFlag.REMOVED:d}, {_MOVED_CTIME}"
        " WHERE ino IN (SELECT value FROM json_each(?2))",
        (now_ns, json.dumps(list(inos))),
    )


def tops(db: Database) -> list[Ino]:
    """Return the tops of removed trees, ascending."""
    sql = f"SELECT ino FROM inodes WHERE nlink = 0 AND flags & {InodeFlag.REMOVED:d} ORDER BY ino"
    return [row[0] for row in db.all(sql)]


def names(db: Database, parents: Sequence[Ino], limit: int) -> list[Name]:
    """Return names in directories, in the order given and by cookie, at most *limit*."""
    return [Name._make(row) for row in db.all(_NAMES, (json.dumps(parents), limit))]


def others(db: Database, inos: Collection[Ino]) -> dict[Ino, Other]:
    """Return what is known of some inodes; those that do not exist are left out."""
    rows = db.all(_OTHERS, (json.dumps(list(inos)),))
    return {row[0]: Other._make(row) for row in rows}


def remove_names(
    db: Database, emptied: Sequence[Ino], part: tuple[Ino, Cookie] | None = None
) -> None:
    """Remove all names of directories, and of one more those up to a position. Inside a group.

    The rows of the emptied ones are the caller's, the size of the other one is kept.
    """
    if emptied:
        sql = f"DELETE FROM dentries WHERE parent IN {_GIVEN}"
        db.counters.dentries -= db.run(sql, (json.dumps(emptied),))
    if part is not None:
        gone = db.run("DELETE FROM dentries WHERE parent = ? AND cookie <= ?", part)
        db.counters.dentries -= gone
        db.run("UPDATE inodes SET size_bytes = size_bytes - ? WHERE ino = ?", (gone, part[0]))


def emptied_in_use(db: Database, inos: Collection[Ino]) -> None:
    """Make tops without names ordinary orphans, which somebody holds. Inside a group."""
    db.run(
        f"UPDATE inodes SET size_bytes = 0, flags = flags & ~{InodeFlag.REMOVED:d}"
        f" WHERE ino IN {_GIVEN}",
        (json.dumps(list(inos)),),
    )


def orphan(db: Database, inos: Collection[Ino], now_ns: int) -> None:
    """Take the last names of inodes that have to stay a while. Inside a group."""
    db.run(
        f"UPDATE inodes SET nlink = 0, {_MOVED_CTIME}"
        " WHERE ino IN (SELECT value FROM json_each(?2))",
        (now_ns, json.dumps(list(inos))),
    )


def delete(db: Database, inos: Collection[Ino], file_bytes: int) -> None:
    """Remove rows of inodes that nothing names any more. Transaction: inside a group.

    Args:
        inos: their names, blocks, attributes and targets are the caller's.
        file_bytes: sum of the sizes of the regular files among them.
    """
    if inos:
        sql = f"DELETE FROM inodes WHERE ino IN {_GIVEN}"
        db.counters.inodes -= db.run(sql, (json.dumps(list(inos)),))
        db.counters.file_bytes -= file_bytes


def delete_xattrs(db: Database, inos: Collection[Ino]) -> None:
    """Remove all attributes of inodes that go themselves. Inside a group."""
    if inos:
        db.run(f"DELETE FROM xattrs WHERE ino IN {_GIVEN}", (json.dumps(list(inos)),))


def delete_targets(db: Database, inos: Collection[Ino]) -> None:
    """Remove the targets of symbolic links that go themselves. Inside a group."""
    if inos:
        db.run(f"DELETE FROM symlinks WHERE ino IN {_GIVEN}", (json.dumps(list(inos)),))


# --- hard links --------------------------------------------------------------------------------


def drop_links(db: Database, lost: Mapping[tuple[Ino, Ino], int]) -> None:
    """Note that directories lost names of inodes with several. Transaction: inside a group.

    Args:
        lost: how many, by inode and directory. nlink and parent are the caller's: ``lose_names``.
    """
    rows = [(ino, parent, count) for (ino, parent), count in lost.items()]
    db.run_many("DELETE FROM hard_links WHERE ino = ? AND parent = ? AND names <= ?", rows)
    db.run_many("UPDATE hard_links SET names = names - ?3 WHERE ino = ?1 AND parent = ?2", rows)


def lose_names(
    db: Database, lost: Mapping[Ino, int], before: Mapping[Ino, Other], now_ns: int
) -> None:
    """Count fewer names on inodes that keep some, after ``drop_links``. Inside a group."""
    db.run_many(_LOSE_LINKS, [(now_ns, count, ino) for ino, count in lost.items()])
    single = json.dumps([ino for ino, count in lost.items() if before[ino].nlink - count == 1])
    db.run(
        "UPDATE inodes SET parent = (SELECT h.parent FROM hard_links AS h WHERE h.ino = inodes.ino)"
        f" WHERE ino IN {_GIVEN}",
        (single,),
    )
    db.run(f"DELETE FROM hard_links WHERE ino IN {_GIVEN}", (single,))
    db.run(
        "UPDATE inodes SET parent ="
        " (SELECT min(h.parent) FROM hard_links AS h WHERE h.ino = inodes.ino)"
        f" WHERE ino IN {_GIVEN} AND nlink > 1 AND NOT EXISTS (SELECT 1 FROM hard_links AS h"
        " WHERE h.ino = inodes.ino AND h.parent = inodes.parent)",
        (json.dumps(list(lost)),),
    )


# --- blocks ------------------------------------------------------------------------------------


def unmap_all(db: Database, inos: Collection[Ino]) -> Counter[BlockId]:
    """Remove the block maps of inodes that go themselves; return how often each block was named.

    Transaction: inside a group.
    """
    given = json.dumps(list(inos))
    sql = f"SELECT block, count(*) FROM block_map WHERE ino IN {_GIVEN} GROUP BY block"
    named: Counter[BlockId] = Counter(dict(db.all(sql, (given,))))
    db.run(f"DELETE FROM block_map WHERE ino IN {_GIVEN}", (given,))
    return named


def drop_refs(db: Database, named: Mapping[BlockId, int], kept: Collection[BlockId]) -> list[Freed]:
    """Drop references to blocks; remove those that have none left. Transaction: inside a group.

    Args:
        named: how many references each loses.
        kept: blocks whose rows stay, because they are on their way to a pack.

    Returns:
        The blocks that went; their local copies are the caller's.
    """
    rows = db.all(
        f"SELECT block, refs, plain_bytes, pack, stored_bytes FROM blocks WHERE block IN {_GIVEN}",
        (json.dumps(list(named)),),
    )
    freed = [
        Freed(block, plain_bytes, pack, stored_bytes)
        for block, refs, plain_bytes, pack, stored_bytes in rows
        if refs == named[block] and block not in kept
    ]
    gone = {each.block for each in freed}
    db.run_many(
        "UPDATE blocks SET refs = refs - ? WHERE block = ?",
        [(count, block) for block, count in named.items() if block not in gone],
    )
    db.run(f"DELETE FROM blocks WHERE block IN {_GIVEN}", (json.dumps(list(gone)),))
    db.counters.block_bytes -= sum(each.plain_bytes for each in freed)
    _drop_live_bytes(db, freed)
    return freed


def _drop_live_bytes(db: Database, freed: Iterable[Freed]) -> None:
    """Note that blocks died in their packs."""
    died: Counter[PackId] = Counter()
    for each in freed:
        if each.pack is not None:
            died[each.pack] += each.stored_bytes or 0
    for pack, stored_bytes in died.items():
        packs.drop_live_bytes(db, pack, stored_bytes)
