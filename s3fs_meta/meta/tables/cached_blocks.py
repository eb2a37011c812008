"""Rows of ``cached_blocks``: the blocks cached on this host, and their states.

Owns: the rows of cached_blocks. Does not know: block files, which changes of state are valid
(``cache``).
"""

import json
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Final, NamedTuple

from s3fs_meta.errors import BadRowError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.tables import blocks, damage_marks, packs
from s3fs_meta.model import BlockId, BlockIndex, BlockState, CachedRow, Ino, PackId

_STATES: Final = tuple(BlockState)
# The length of a cached block, or 0 if it cannot be read; requests for the file report that.
_LENGTH: Final = "CASE typeof(b.plain_bytes) WHEN 'integer' THEN b.plain_bytes ELSE 0 END"
_STORED_IN: Final = (
    "SELECT b.pack_offset FROM blocks AS b JOIN cached_blocks AS c ON c.block = b.block"
    f" WHERE b.pack = ? AND c.state IN ({BlockState.UPLOADED:d}, {BlockState.CLEAN:d})"
)


class StateTotal(NamedTuple):
    """The number and the total bytes of the cached blocks in one state."""

    blocks: int
    plain_bytes: int


class Tail(NamedTuple):
    """A dirty or sealed block whose file has unsynced bytes."""

    block: BlockId
    synced_bytes: int
    plain_bytes: int


class SealedRow(NamedTuple):
    """A sealed block that is waiting to be uploaded."""

    block: BlockId
    ino: Ino
    block_index: BlockIndex
    plain_bytes: int


def put(db: Database, block: BlockId, state: BlockState, ino: Ino, index: BlockIndex) -> None:
    """Insert or replace the row of a cached block. Requires an open transaction."""
    db.run(
        "INSERT OR REPLACE INTO cached_blocks VALUES (?, ?, ?, ?, 0)",
        (block, int(state), ino, index),
    )


def get(db: Database, block: BlockId) -> CachedRow | None:
    """Return the row of a cached block, or None if it is not cached."""
    row = db.one(
        "SELECT block, state, ino, block_index FROM cached_blocks WHERE block = ?", (block,)
    )
    return None if row is None else CachedRow(row[0], _state(row), row[2], row[3])


def set_state(db: Database, block: BlockId, state: BlockState) -> bool:
    """Change the state of a block; return whether the block is cached. Needs a transaction."""
    sql = "UPDATE cached_blocks SET state = ? WHERE block = ?"
    return db.run(sql, (int(state), block)) == 1


def set_states(db: Database, wanted: Sequence[BlockId], state: BlockState) -> None:
    """Change the state of several cached blocks. Requires an open transaction."""
    sql = "UPDATE cached_blocks SET state = ? WHERE block = ?"
    db.run_many(sql, [(int(state), block) for block in wanted])


def delete(db: Database, block: BlockId) -> None:
    """Delete the row of a cached block, if there is one. Requires an open transaction."""
    db.run("DELETE FROM cached_blocks WHERE block = ?", (block,))


def replace_all(db: Database, clean: Iterable[BlockId]) -> None:
    """Replace all rows of the table with rows of clean blocks. Requires an open transaction."""
    db.run("DELETE FROM cached_blocks")
    db.run_many(
        f"INSERT INTO cached_blocks VALUES (?, {BlockState.CLEAN:d}, 0, 0, 0)",
        [(block,) for block in clean],
    )


def note_synced(db: Database, lengths: Iterable[tuple[BlockId, int]]) -> None:
    """Record the synced lengths of block files; ignore blocks without a row.

    Requires an open transaction.
    """
    db.run_many(
        "UPDATE cached_blocks SET synced_bytes = ? WHERE block = ?",
        [(length, block) for block, length in lengths],
    )


def synced_bytes(db: Database, block: BlockId) -> int:
    """Return how many bytes of a block's file are synced, or 0 if the block is not cached."""
    row = db.one("SELECT synced_bytes FROM cached_blocks WHERE block = ?", (block,))
    return 0 if row is None else int(row[0])


def unsynced_tails(db: Database) -> list[Tail]:
    """Return dirty and sealed blocks that are longer than their synced bytes, sorted by number."""
    rows = db.all(
        "SELECT c.block, c.synced_bytes, b.plain_bytes FROM cached_blocks c"
        " JOIN blocks b ON b.block = c.block"
        f" WHERE c.state <> {BlockState.CLEAN:d} AND b.pack IS NULL"
        f" AND c.state IN ({BlockState.DIRTY:d}, {BlockState.SEALED:d})"
        " AND c.synced_bytes < b.plain_bytes ORDER BY c.block"
    )
    return [Tail._make(row) for row in rows]


def in_state(db: Database, state: BlockState, limit: int = -1) -> list[BlockId]:
    """Return cached blocks in one state, sorted by number.

    Args:
        limit: at most this many blocks; -1 for all.
    """
    # The partial index has the condition state <> 4. SQLite needs it in the query to use the index.
    partial = "" if state is BlockState.CLEAN else f"state <> {BlockState.CLEAN:d} AND"
    sql = f"SELECT block FROM cached_blocks WHERE {partial} state = ? ORDER BY block LIMIT ?"
    return [row[0] for row in db.all(sql, (int(state), limit))]


def settling(db: Database) -> tuple[list[BlockId], list[BlockId]]:
    """Return the blocks in state UPLOADED and in state DOOMED; the next sync ends both states."""
    states = BlockState.UPLOADED, BlockState.DOOMED
    rows = db.all(
        f"SELECT block, state FROM cached_blocks WHERE state <> {BlockState.CLEAN:d}"
        " AND state IN (?, ?) ORDER BY block",
        states,
    )
    uploaded, doomed = ([block for block, state in rows if state == one] for one in states)
    return uploaded, doomed


def sealed_rows(db: Database, wanted: Sequence[BlockId] | None = None) -> list[SealedRow]:
    """Return sealed blocks sorted by inode and index, so that a pack stores them in file order.

    Sealed blocks without references from files are included.

    Args:
        wanted: the blocks to return; None for all.
    """
    chosen = "" if wanted is None else " AND c.block IN (SELECT value FROM json_each(?))"
    rows = db.all(
        "SELECT c.block, c.ino, c.block_index, b.plain_bytes FROM cached_blocks c"
        " CROSS JOIN blocks b ON b.block = c.block"
        f" WHERE c.state <> {BlockState.CLEAN:d} AND c.state = {BlockState.SEALED:d}{chosen}"
        " ORDER BY c.ino, c.block_index, c.block",
        () if wanted is None else (json.dumps(wanted),),
    )
    return [SealedRow._make(row) for row in rows]


def unseal_all(db: Database) -> None:
    """Undo sealing after a crash: referenced blocks become DIRTY, and all others DOOMED.

    A block that compaction was moving keeps its old location. It becomes UPLOADED, because its
    location may not be synced yet; the next sync makes it CLEAN.

    Even if a pack with the blocks was stored, they are uploaded again in another pack.
    Requires an open transaction.
    """
    for row in sealed_rows(db):
        block = blocks.get(db, row.block)
        if block.refs > 0:
            state = BlockState.DIRTY if block.pack is None else BlockState.UPLOADED
            set_state(db, row.block, state)
        else:
            blocks.delete(db, row.block)
            set_state(db, row.block, BlockState.DOOMED)


def rows_with_size(db: Database) -> Iterator[tuple[BlockId, BlockState, int]]:
    """Yield all cached blocks with state and length, sorted by number.

    A DOOMED block that has no row in ``blocks`` has length 0, as has a block whose length cannot be
    read. Exhaust or close the iterator before the next schedule point.

    Raises:
        BadRowError: a state cannot be read.
    """
    for row in db.iterate(
        f"SELECT c.block, c.state, {_LENGTH} FROM cached_blocks c"
        " LEFT JOIN blocks b ON b.block = c.block ORDER BY c.block"
    ):
        yield row[0], _state(row), row[2]


def _state(row: Row) -> BlockState:
    """Return the state in a row with block and state; raise BadRowError if it cannot be read."""
    block, state = row[:2]
    if type(state) is not int or not 0 < state <= len(_STATES):
        raise BadRowError(f"the state of cached block {block}", 0)
    return _STATES[state - 1]


def totals(db: Database) -> dict[BlockState, StateTotal]:
    """Return the number and the bytes of cached blocks in each state; raise BadRowError.

    The call reads all rows.
    """
    found = dict.fromkeys(BlockState, StateTotal(0, 0))
    for *one, count, plain_bytes in db.all(
        f"SELECT min(c.block), c.state, count(*), sum({_LENGTH}) FROM cached_blocks c"
        " LEFT JOIN blocks b ON b.block = c.block GROUP BY c.state"
    ):
        found[_state(tuple(one))] = StateTotal(count, plain_bytes)
    return found


def are_marked(db: Database, marked: Database) -> bool:
    """Return whether any block cached according to *db* has a damage mark in *marked*.

    Args:
        db: the database with the cached blocks.
        marked: the database with the damage marks; may be *db*.
    """
    return any(
        None in offsets or row[0] in offsets
        for pack, offsets in _marked_packs(db, marked)
        for row in db.all(_STORED_IN, (pack,))
    )


def marked_among(db: Database, marked: Database, held: Set[BlockId]) -> list[BlockId]:
    """Return the blocks in *held* whose locations in *db* have damage marks in *marked*.

    Args:
        db: the database with the locations of the blocks.
        marked: the database with the damage marks; may be *db*.
        held: cached blocks, whose rows in ``cached_blocks`` may be in another database.
    """
    return [
        row.block
        for pack, offsets in _marked_packs(db, marked)
        for row in blocks.readable_in_pack(db, pack)
        if row.block in held and (None in offsets or row.pack_offset in offsets)
    ]


def _marked_packs(db: Database, marked: Database) -> Iterator[tuple[PackId, set[int | None]]]:
    """Yield packs of *db* with their damaged offsets; an offset of None means the complete pack.

    Pack numbers of the two databases may differ, so packs are compared by their object keys.
    """
    offsets: dict[str, set[int | None]] = {}
    for mark in damage_marks.marks(marked):
        row = packs.find(marked, mark.pack)
        if row is not None:
            offsets.setdefault(row.object_key, set()).add(mark.pack_offset)
    if offsets:
        for pack, key in packs.all_keys(db):
            if key in offsets:
                yield pack, offsets[key]
