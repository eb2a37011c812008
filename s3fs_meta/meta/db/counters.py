"""The single rows of the tables ``counters`` and ``totals``, kept in memory.

Owns: the next unused numbers, and the totals, which would otherwise need a scan.
Does not know: commit groups (``database`` loads and writes the counters).
Keeps: at every commit the columns equal the result of a scan.

Sparse files have sizes of up to 1 EiB, so ``file_bytes`` may exceed the largest integer of SQLite.
The column is therefore modulo 2**64, as a signed number: no file size can make a commit fail, and
a total below 16 EiB is exact. Other totals are that large only after damage to rows (I65). They are
also written modulo 2**64, so that a commit succeeds even then.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from s3fs_meta.model import BlockId, Ino, PackId

_REPLICATED: Final = (
    "next_ino",
    "next_block",
    "inodes",
    "dentries",
    "file_bytes",
    "capacity_bytes",
    "txg",
)
_TOTALS: Final = ("next_pack", "block_bytes", "stored_bytes")
COLUMNS: Final = (*_REPLICATED, *_TOTALS)
TABLE_OF: Final = dict.fromkeys(_REPLICATED, "counters") | dict.fromkeys(_TOTALS, "totals")

# Damaged text may not be UTF-8, and is read as NULL.
_NUMBERS: Final = ", ".join(
    f"CASE typeof({one}) WHEN 'text' THEN NULL ELSE {one} END" for one in COLUMNS
)
SELECT: Final = (
    f"SELECT {_NUMBERS} FROM counters CROSS JOIN totals WHERE counters.id = 1 AND totals.id = 1"
)


def _update(table: str, columns: tuple[str, ...]) -> str:
    return f"UPDATE {table} SET {', '.join(f'{name} = ?' for name in columns)} WHERE id = 1"


_UPDATE: Final = _update("counters", _REPLICATED)
_UPDATE_TOTALS: Final = _update("totals", _TOTALS)
_TXG: Final = COLUMNS.index("txg")
_LOW: Final = (1 << 32) - 1
_HALF: Final = 1 << 63
_FULL: Final = 1 << 64
_SPLIT: Final = len(_REPLICATED)


def sum_of(value: str) -> str:
    """Return an SQL expression for the sum of an integer expression, modulo 2**64 and signed.

    NULL values are ignored. SQLite's sum() would fail if the sum exceeded the largest integer.
    """
    low = f"coalesce(sum(({value}) & {_LOW}), 0)"
    high = f"coalesce(sum(({value}) >> 32), 0) + ({low} >> 32)"
    return f"((({high}) << 32) | ({low} & {_LOW}))"


def _signed(total: int) -> int:
    """Return a total modulo 2**64, as a signed number."""
    return (total + _HALF) % _FULL - _HALF


class Updates(NamedTuple):
    """The values of the counters after a commit, and the statements that write these values."""

    values: tuple[int, ...]
    statements: Sequence[tuple[str, tuple[int, ...]]]


class Counters:
    """The values of all counters; code that changes rows updates them in the same commit group."""

    __slots__ = (*COLUMNS, "xattr_bytes")

    # Bytes in all names and values of extended attributes, or None before ``xattrs.count_bytes``.
    # The number of xattr bytes is not stored, because only a capacity limit needs it.
    xattr_bytes: int | None

    next_ino: int
    next_block: int
    next_pack: int
    txg: int
    inodes: int
    dentries: int
    file_bytes: int
    block_bytes: int
    stored_bytes: int
    capacity_bytes: int

    def load(self, values: tuple[int, ...]) -> None:
        """Set all counters from a row with the columns COLUMNS."""
        assert len(values) == len(COLUMNS), "each column needs a value"
        for name, value in zip(COLUMNS, values, strict=True):
            setattr(self, name, value)
        self.file_bytes %= _FULL
        self.xattr_bytes = None

    def put(self, name: str, value: int) -> None:
        """Set the counter of one column, for repairs by fsck."""
        assert name in COLUMNS, "the counter must be a column"
        setattr(self, name, value)

    def values(self) -> tuple[int, ...]:
        """Return the values of all columns in the order given by COLUMNS."""
        return (
            self.next_ino,
            self.next_block,
            _signed(self.inodes),
            _signed(self.dentries),
            _signed(self.file_bytes),
            self.capacity_bytes,
            self.txg,
            self.next_pack,
            _signed(self.block_bytes),
            _signed(self.stored_bytes),
        )

    def updates(self, written: tuple[int, ...]) -> Updates:
        """Return the statements that write the changed counters; none if only the txg has changed.

        Args:
            written: the current values of the rows, in the order of COLUMNS.
        """
        self.file_bytes %= _FULL  # large sums are stored as negative numbers (``sum_of``)
        now = self.values()
        has_totals = now[_SPLIT:] != written[_SPLIT:]
        if not has_totals and now[:_TXG] == written[:_TXG]:
            return Updates(written, ())
        statements = [(_UPDATE, now[:_SPLIT])] if now[:_SPLIT] != written[:_SPLIT] else []
        if has_totals:
            statements.append((_UPDATE_TOTALS, now[_SPLIT:]))
        return Updates(now, statements)

    def begin_txg(self, txg: int) -> None:
        """Set the txg of the changelog to be shipped next."""
        self.txg = txg

    def take_ino(self) -> Ino:
        """Return an unused inode number."""
        number = self.next_ino
        self.next_ino = number + 1
        return Ino(number)

    def take_block(self) -> BlockId:
        """Return an unused block number."""
        number = self.next_block
        self.next_block = number + 1
        return BlockId(number)

    def take_pack(self) -> PackId:
        """Return an unused pack number."""
        number = self.next_pack
        self.next_pack = number + 1
        return PackId(number)
