"""Survey of a past tree before it is copied, through a separate connection.

Owns: finding the packs that contain the content of a tree, and the tree's blocks in some packs.
Does not know: the present state, the retention of packs.
Keeps: the file is not changed. The survey reads the pages of the tree before the copy. So an
unreadable page is found before the filesystem changes. The copy, which runs on the event loop, then
finds the pages in memory.
Tasks: all calls block; call them in threads, one at a time.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import apsw

from s3fs_meta.errors import PastUnavailableError
from s3fs_meta.meta.db import connections
from s3fs_meta.model import BlockId, BlockRow, Ino, ObjectKey, PackId, Txg

# UNION ends the search even if a damaged directory is its own descendant.
_TREE: Final = (
    "CREATE TEMP TABLE tree (ino INTEGER PRIMARY KEY)",
    "INSERT INTO temp.tree WITH RECURSIVE below(ino) AS (SELECT ?1 UNION SELECT d.ino FROM below"
    " CROSS JOIN dentries AS d ON d.parent = below.ino) SELECT ino FROM below",
)
_BLOCKS: Final = (
    " FROM temp.tree AS t CROSS JOIN block_map AS m ON m.ino = t.ino"
    " LEFT JOIN blocks AS b ON b.block = m.block"
)
_PACKS: Final = (
    "SELECT n.pack, p.object_key FROM (SELECT DISTINCT b.pack AS pack"
    f"{_BLOCKS}) AS n LEFT JOIN packs AS p ON p.pack = n.pack"
)
_DOUBTFUL: Final = (
    "CREATE TEMP TABLE doubtful AS SELECT DISTINCT b.block, b.plain_bytes, b.hash, b.pack,"
    f" b.pack_offset, b.stored_bytes{_BLOCKS} WHERE b.pack IN (SELECT value FROM json_each(?))",
    "CREATE INDEX temp.doubtful_by_block ON doubtful (block)",
)
_NEXT: Final = (
    "SELECT block, 1, plain_bytes, hash, pack, pack_offset, stored_bytes FROM temp.doubtful"
    " WHERE block > ? ORDER BY block LIMIT ?"
)


class PastSurvey:
    """One directory tree in a database of a past txg."""

    def __init__(self, path: Path, txg: Txg, top: Ino) -> None:
        """Open the database and list the inodes of a tree.

        Args:
            path: the database, which does not change until ``close``.
            txg: the txg of the database, for errors.
            top: the inode at the top of the tree.

        Raises:
            PastUnavailableError: the database cannot be read.
        """
        self._txg = txg
        with self._explained():
            self._connection = connections.connect_immutable(path)
        try:
            with self._explained():
                self._connection.execute(_TREE[0])
                self._connection.execute(_TREE[1], (top,))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def packs(self) -> dict[PackId, ObjectKey] | None:
        """Return the packs that contain the tree's blocks, or None if a block has no location."""
        found: dict[PackId, ObjectKey] = {}
        with self._explained():
            for pack, key in self._connection.execute(_PACKS):
                if not isinstance(pack, int) or not isinstance(key, str):
                    return None
                found[PackId(pack)] = ObjectKey(key)
        return found

    def choose(self, packs: Iterable[PackId]) -> None:
        """Select the blocks of the tree that are in given packs, for ``blocks_after``."""
        with self._explained():
            self._connection.execute(_DOUBTFUL[0], (json.dumps(list(packs)),))
            self._connection.execute(_DOUBTFUL[1])

    def blocks_after(self, block: BlockId, limit: int) -> list[BlockRow]:
        """Return the next *limit* selected blocks, sorted by number."""
        with self._explained():
            rows = self._connection.execute(_NEXT, (block, limit)).fetchall()
        return [BlockRow._make(row) for row in rows]

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (apsw.Error, UnicodeDecodeError) as exc:
            raise PastUnavailableError(self._txg, str(exc) or type(exc).__name__) from exc
