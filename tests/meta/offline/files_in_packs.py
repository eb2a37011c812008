"""Databases with files whose blocks are stored in packs."""

from pathlib import Path

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import block_map, blocks, inodes, packs
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex, Ino, ObjectKey, PackId

FACTS = {"uuid": b"u", "block_bytes": b"65536", "cookie_key": b"k" * 16}


def database(path: Path) -> Database:
    """Return the database of an empty filesystem, with an open commit group."""
    made = Database.create(path, Pragmas(), FACTS)
    made.begin()
    return made


def pack(db: Database, number: int) -> PackId:
    """Add the row of a pack that is stored in the bucket."""
    made = packs.create(db, ObjectKey(f"pack/00/1-{number:032x}"), 1000)
    packs.stored(db, made)
    return made


def file_in(db: Database, where: PackId, content_hash: bytes) -> tuple[Ino, BlockId]:
    """Create a file with one block in a pack; return the inode number and the block number."""
    ino = inodes.create(db, 0o100644, 0, 0, ROOT_INO, 0, size_bytes=100).ino
    block = db.counters.take_block()
    blocks.create_dirty(db, block, ino, BlockIndex(0), 100)
    block_map.set(db, ino, BlockIndex(0), block)
    blocks.set_location(db, blocks.get(db, block), content_hash, where, 0, 50)
    db.run("DELETE FROM cached_blocks")
    return ino, block
