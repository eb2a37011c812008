"""Random damage to the rows, cached blocks and objects of a filesystem."""

import random

from s3fs_meta.errors import DatabaseError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.model import ObjectKey
from tests.check.healthy import Healthy
from tests.damage import flipped

COLUMNS = {
    "inodes": "mode nlink uid gid size_bytes mapped_blocks ctime_ns mtime_delta_ns rdev parent flags"
    " btime_delta_ns",
    "dentries": "parent cookie name ino",
    "hard_links": "ino parent names",
    "symlinks": "ino target",
    "xattrs": "ino name value",
    "block_map": "ino block_index block",
    "blocks": "refs plain_bytes hash pack pack_offset stored_bytes",
    "packs": "state object_bytes live_bytes died_txg",
    "cached_blocks": "state ino block_index",
    "counters": "next_ino next_block next_pack inodes dentries file_bytes block_bytes stored_bytes",
}
NUMBERS = (
    None,
    -1,
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    9,
    12,
    16,
    25,
    1 << 20,
    1 << 40,
    1 << 62,
    0o40755,
    0o120777,
)
BYTES = (b"", b"a/b", b".", b"..", b"x\0y", b"name", b"n" * 300, "text")
HASHES = (None, b"x", bytes(32))

Value = int | bytes | str | None


class Vandal:
    """A source of random damage to one filesystem, reproducible by its seed."""

    def __init__(self, healthy: Healthy, seed: int) -> None:
        self.healthy = healthy
        self.rnd = random.Random(seed)

    def rage(self) -> None:
        """Damage some rows and perhaps a file or an object. Reopen the database, as fsck does."""
        # Write cached inode rows first, so that SQL sees them.
        self.healthy.db.inodes.write_through()
        for _ in range(self.rnd.randrange(1, 6)):
            self.damage_a_row()
        if self.rnd.random() < 0.7:
            self.rnd.choice([self.damage_a_file, self.damage_an_object])()
        db = self.healthy.db
        db.close()
        self.healthy.db = Database.open(db.path, Pragmas(synchronous="off"))

    def damage_a_row(self) -> None:
        """Delete, change or add a row, unless SQLite refuses it."""
        db = self.healthy.db
        table = self.rnd.choice(list(COLUMNS))
        names = [row[1] for row in db.all(f"PRAGMA table_info({table})")]
        rows = db.all(f"SELECT * FROM {table}")
        if not rows:
            return
        row = self.rnd.choice(rows)
        this = " AND ".join(f"{name} IS ?" for name in names)
        column = self.rnd.choice(COLUMNS[table].split())
        kind = "UPDATE" if table == "counters" else self.rnd.choice(["UPDATE", "DELETE", "INSERT"])
        db.begin()
        try:
            if kind == "UPDATE":
                sql = f"UPDATE OR IGNORE {table} SET {column} = ? WHERE {this}"
                db.run(sql, (self.value(column), *row))
            elif kind == "DELETE":
                db.run(f"DELETE FROM {table} WHERE {this}", row)
            else:
                places = ", ".join("?" * len(names))
                changed = [
                    self.value(name) if name == column else old
                    for name, old in zip(names, row, strict=True)
                ]
                db.run(f"INSERT OR IGNORE INTO {table} VALUES ({places})", tuple(changed))
            db.commit()
        except DatabaseError:
            db.rollback()

    def value(self, column: str) -> Value:
        """Return a random value for a column, valid or invalid."""
        if column.startswith("next_"):
            return 1
        if column in {"name", "target", "value"}:
            return self.rnd.choice(BYTES)
        return self.rnd.choice(HASHES) if column == "hash" else self.rnd.choice(NUMBERS)

    def damage_a_file(self) -> None:
        """Delete or truncate the cache file of a block."""
        block = self.rnd.choice(sorted(self.healthy.files.numbers()))
        if self.rnd.random() < 0.5:
            self.healthy.files.remove(block)
        else:
            self.healthy.shorten(block, self.rnd.randrange(50))

    def damage_an_object(self) -> None:
        """Delete a pack, or flip one of its bits."""
        objects = self.healthy.store.objects
        key = ObjectKey(self.rnd.choice(sorted(key for key in objects if key.startswith("pack/"))))
        if self.rnd.random() < 0.5:
            del objects[key]
            return
        at = self.rnd.randrange(len(objects[key]))
        objects[key] = flipped(objects[key], at, self.rnd.randrange(8))
