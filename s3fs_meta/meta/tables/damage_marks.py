"""Damage marks: rows of ``properties`` for packs and blocks that the bucket lost or damaged.

A mark covers a complete pack, or one record in it (the stored bytes of one block). Deduplication
does not use marked content.

Owns: adding, finding and removing marks. Does not know: how damage is proven or healed
(``sync.upload.healing``).
Keeps: a mark refers to a location, and locations are never reused. So the mark stays correct if the
block moves to another pack. The table is replicated, so every host has the marks. If more than
DAMAGED_RECORDS_MAX records of a pack are damaged, the complete pack is marked.

A row is named ``damaged/<pack>``, or ``damaged/<pack>/<offset>`` for one record; its value is
empty.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from s3fs_meta.errors import FormatError
from s3fs_meta.limits import DAMAGED_RECORDS_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables.row_types import decimal
from s3fs_meta.model import PackId

_PREFIX: Final = "damaged/"
_OURS: Final = "name >= 'damaged/' AND name < 'damaged0'"  # names that begin with "damaged/"
_RECORDS: Final = "name > ?1 || '/' AND name < ?1 || '0'"  # marks of records in pack ?1

# An SQL condition that is true if the database has a damage mark. SQLite tests it once per query.
ANY: Final = f"EXISTS (SELECT 1 FROM properties WHERE {_OURS})"
# An SQL condition on ``blocks AS b`` that is true if the location of the block is marked.
COVERS_B: Final = (
    "EXISTS (SELECT 1 FROM properties AS d WHERE d.name IN"
    f" ('{_PREFIX}' || b.pack, '{_PREFIX}' || b.pack || '/' || b.pack_offset))"
)
# An SQL condition on ``packs`` that is true if the complete pack is marked.
COVERS_PACK: Final = (
    f"EXISTS (SELECT 1 FROM properties AS d WHERE d.name = '{_PREFIX}' || packs.pack)"
)


class Mark(NamedTuple):
    """A damaged record of a pack or, if it has no offset, a damaged pack."""

    pack: PackId
    pack_offset: int | None

    @property
    def name(self) -> str:
        """Return the name of the mark's row in ``properties``."""
        whole = f"{_PREFIX}{self.pack}"
        return whole if self.pack_offset is None else f"{whole}/{self.pack_offset}"


def add(db: Database, mark: Mark) -> bool:
    """Mark a pack or a record; return whether the mark is new. Requires an open transaction."""
    if covers(db, mark.pack, mark.pack_offset):
        return False
    whole = Mark(mark.pack, None)
    if mark.pack_offset is not None and _records(db, whole) >= DAMAGED_RECORDS_MAX:
        mark = whole
    if mark == whole:
        db.run(f"DELETE FROM properties WHERE {_RECORDS}", (whole.name,))
    db.run("INSERT INTO properties VALUES (?, x'')", (mark.name,))
    return True


def _records(db: Database, whole: Mark) -> int:
    row = db.one(f"SELECT count(*) FROM properties WHERE {_RECORDS}", (whole.name,))
    return 0 if row is None else int(row[0])


def covers(db: Database, pack: PackId, pack_offset: int | None) -> bool:
    """Return whether a record has a mark, or its complete pack has one.

    Args:
        pack_offset: offset of the record; None for the complete pack.
    """
    whole, record = Mark(pack, None).name, Mark(pack, pack_offset).name
    return db.one("SELECT 1 FROM properties WHERE name IN (?, ?)", (whole, record)) is not None


def exist(db: Database) -> bool:
    """Return whether the database has any damage mark, with one index lookup."""
    return db.one(f"SELECT 1 WHERE {ANY}") is not None


def marks(db: Database) -> list[Mark]:
    """Return all damage marks.

    Raises:
        FormatError: the name of a row is not a valid name of a mark.
    """
    return [_required(db, row[0]) for row in db.all(f"SELECT name FROM properties WHERE {_OURS}")]


def invalid(db: Database) -> list[str]:
    """Return the names that begin like a damage mark but do not have the form of a mark."""
    names = [row[0] for row in db.all(f"SELECT name FROM properties WHERE {_OURS}")]
    return [name for name in names if _mark(name) is None]


def remove_invalid(db: Database) -> None:
    """Remove malformed marks, which refer to no location. Requires an open transaction."""
    db.run_many("DELETE FROM properties WHERE name = ?", [(name,) for name in invalid(db)])


def marks_of(db: Database, pack: PackId) -> list[Mark]:
    """Return the damage marks for one pack and its records, without invalid marks (I5)."""
    sql = f"SELECT name FROM properties WHERE name = ?1 OR {_RECORDS}"
    found = [_mark(row[0]) for row in db.all(sql, (Mark(pack, None).name,))]
    return [mark for mark in found if mark is not None]


def remove(db: Database, removed: Iterable[Mark]) -> None:
    """Remove damage marks, because their locations are intact. Requires an open transaction."""
    db.run_many("DELETE FROM properties WHERE name = ?", [(mark.name,) for mark in removed])


def forget_pack(db: Database, pack: PackId) -> None:
    """Remove the damage marks of a deleted pack. Requires an open transaction."""
    name = Mark(pack, None).name
    db.run(f"DELETE FROM properties WHERE name = ?1 OR {_RECORDS}", (name,))


def take_over(db: Database, other: Database) -> None:
    """Replace all damage marks with the marks of another database. Requires an open transaction."""
    db.run(f"DELETE FROM properties WHERE {_OURS}")
    db.run_many("INSERT INTO properties VALUES (?, x'')", [(one.name,) for one in marks(other)])


def _required(db: Database, name: str) -> Mark:
    mark = _mark(name)
    if mark is None:
        what = f"the damage mark {name!r} is invalid; unmount, and run s3fs-meta fsck -y"
        raise FormatError(str(db.path), what)
    return mark


def _mark(name: str) -> Mark | None:
    """Return the mark that a row's name describes, or None if the name has another form."""
    pack_text, slash, offset_text = name.removeprefix(_PREFIX).partition("/")
    pack, offset = decimal(pack_text), decimal(offset_text) if slash else None
    if pack is None or (slash and offset is None):
        return None
    mark = Mark(PackId(pack), offset)
    return mark if mark.name == name else None
