"""The one row of ``counters``, in memory.

Owns: numbers that are never reused, and totals that nobody should have to count.
Does not know: when groups begin and end (``database`` loads and writes them).
Keeps: the columns equal what a scan would give, at every commit.
"""

from typing import Final

from s3fs_meta.model import BlockId, Ino, PackId, Txg

COLUMNS: Final = (
    "next_ino",
    "next_block",
    "next_pack",
    "txg",
    "inodes",
    "dentries",
    "file_bytes",
    "block_bytes",
    "stored_bytes",
    "capacity_bytes",
)

SELECT: Final = f"SELECT {', '.join(COLUMNS)} FROM counters WHERE id = 1"
UPDATE: Final = f"UPDATE counters SET {', '.join(f'{name} = ?' for name in COLUMNS)} WHERE id = 1"


class Counters:
    """Mutable; whoever changes rows changes the count in the same group."""

    __slots__ = COLUMNS

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
        """Take the values of a row, in the order of COLUMNS."""
        assert len(values) == len(COLUMNS), "one value per column"
        for name, value in zip(COLUMNS, values, strict=True):
            setattr(self, name, value)

    def values(self) -> tuple[int, ...]:
        """Return the values in the order of COLUMNS."""
        return (
            self.next_ino,
            self.next_block,
            self.next_pack,
            self.txg,
            self.inodes,
            self.dentries,
            self.file_bytes,
            self.block_bytes,
            self.stored_bytes,
            self.capacity_bytes,
        )

    @property
    def open_txg(self) -> Txg:
        """Return the number of the transaction group that ships next."""
        return Txg(self.txg)

    def take_ino(self) -> Ino:
        """Return an inode number that was never given before."""
        number = self.next_ino
        self.next_ino = number + 1
        return Ino(number)

    def take_block(self) -> BlockId:
        """Return a block number that was never given before."""
        number = self.next_block
        self.next_block = number + 1
        return BlockId(number)

    def take_pack(self) -> PackId:
        """Return a pack number that was never given before."""
        number = self.next_pack
        self.next_pack = number + 1
        return PackId(number)
