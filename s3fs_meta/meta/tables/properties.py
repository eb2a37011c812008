"""Rows of ``properties``: facts set by mkfs, abandoned images, and packs that must be kept.

After mkfs, a fact changes only if an upgrade increases the schema version, or if fsck repairs a
missing or invalid fact.

Every other row has an object's key as its name, or records renumbered packs or a replaced history.
These names contain a slash; the names of facts do not. The table is replicated, so every later
writer reads these rows from a changelog or an image. Therefore no host uses an abandoned image, or
treats a kept pack as an orphan. ``damage_marks`` has its own rows in the table.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from s3fs_meta.errors import FormatError, MetadataError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables.row_types import decimal
from s3fs_meta.model import ObjectKey, PackId, Txg

# SQL conditions for names that begin with "image/" or "pack/" ("0" follows "/" in ASCII).
_IMAGES: Final = "name >= 'image/' AND name < 'image0'"
_PACKS: Final = "name >= 'pack/' AND name < 'pack0'"
_RENUMBERED: Final = "renumbered/packs"  # name of a property: a txg and a pack number, in decimal
_REPLACED: Final = "replaced/history"  # name of a property: a txg, in decimal


def get(db: Database, name: str) -> bytes:
    """Return the value of one fact.

    Raises:
        FormatError: the database does not contain the fact.
    """
    row = db.one("SELECT value FROM properties WHERE name = ?", (name,))
    if row is None or type(row[0]) is not bytes:
        raise FormatError(str(db.path), f"the property {name!r} is missing")
    return row[0]


def require(db: Database, facts: Mapping[str, bytes]) -> None:
    """Check facts that are also in the superblock.

    Raises:
        MetadataError: a fact has another value, with which the rows would be misread.
    """
    for name, value in facts.items():
        if get(db, name) != value:
            raise MetadataError(f"the property {name!r} differs from the superblock", 0)


def all_of(db: Database) -> dict[str, bytes]:
    """Return the values in ``properties``, keyed by name; skip values that are not blobs."""
    rows = db.all("SELECT name, value FROM properties WHERE typeof(value) = 'blob'")
    return {row[0]: row[1] for row in rows}


def abandon_images(db: Database, manifests: Iterable[ObjectKey]) -> None:
    """Record that images are abandoned. Requires an open transaction."""
    _note(db, manifests)


def abandoned_images(db: Database) -> set[ObjectKey]:
    """Return the manifests of the abandoned images; they may still exist in the bucket."""
    return _keys(db, _IMAGES)


def forget_images(db: Database, manifests: Iterable[ObjectKey]) -> None:
    """Delete the rows of abandoned images whose manifests are deleted. Needs a transaction.

    This is safe, because names of images are never reused.
    """
    db.run_many("DELETE FROM properties WHERE name = ?", [(key,) for key in manifests])


def take_over_images(db: Database, other: Database) -> None:
    """Copy the list of abandoned images from another database. Requires an open transaction."""
    db.run(f"DELETE FROM properties WHERE {_IMAGES}")
    abandon_images(db, sorted(abandoned_images(other)))


def keep_packs(db: Database, packs: Iterable[ObjectKey]) -> None:
    """Record packs that must be kept although they are unreadable. Requires an open transaction."""
    _note(db, packs)


def kept_packs(db: Database) -> set[ObjectKey]:
    """Return the unreadable packs that must be kept."""
    return _keys(db, _PACKS)


def renumber_packs(db: Database, txg: int, next_pack: int) -> None:
    """Record that the open txg gave packs new numbers, all below *next_pack*. Needs a transaction.

    The new numbers do not show the order of creation, on which the pins of kept points rely.
    """
    db.run(
        "INSERT OR REPLACE INTO properties VALUES (?, ?)",
        (_RENUMBERED, f"{txg} {next_pack}".encode()),
    )


def renumbered_packs(db: Database) -> tuple[Txg, PackId]:
    """Return the txg and bound of the last ``renumber_packs`` call, or zeros if there was none.

    Raises:
        FormatError: the row is damaged.
    """
    txg, next_pack = _numbers(db, _RENUMBERED, 2)
    return Txg(txg), PackId(next_pack)


def take_over_renumbered(db: Database, other: Database) -> None:
    """Copy the record of renumbered packs from another database. Needs a transaction."""
    txg, next_pack = renumbered_packs(other)
    if txg:
        renumber_packs(db, txg, next_pack)


def note_replaced_history(db: Database, txg: Txg) -> None:
    """Record that txgs before *txg* belong to a history that this database does not continue.

    Packs of that history have no rows. Requires an open transaction.
    """
    db.run("INSERT OR REPLACE INTO properties VALUES (?, ?)", (_REPLACED, str(txg).encode()))


def replaced_history(db: Database) -> Txg:
    """Return the txg of the last ``note_replaced_history`` call, or 0 if there was none.

    Raises:
        FormatError: the row is damaged.
    """
    return Txg(_numbers(db, _REPLACED, 1)[0])


def take_over_replaced(db: Database, other: Database) -> None:
    """Copy the record of the replaced history from another database. Needs a transaction."""
    txg = replaced_history(other)
    if txg:
        note_replaced_history(db, txg)


def damaged_records(db: Database) -> list[str]:
    """Return the names of the damaged rows about renumbered packs and replaced histories."""
    found = []
    for name, count in ((_RENUMBERED, 2), (_REPLACED, 1)):
        try:
            _numbers(db, name, count)
        except FormatError:
            found.append(name)
    return found


def replace_damaged_records(db: Database) -> None:
    """Replace damaged rows, as if the open txg renumbered the packs or ended the old history.

    With these values, garbage collection keeps as many packs as possible. Requires an open
    transaction.
    """
    for name in damaged_records(db):
        if name == _RENUMBERED:
            renumber_packs(db, db.counters.txg, db.counters.next_pack)
        else:
            note_replaced_history(db, Txg(db.counters.txg))


def _numbers(db: Database, name: str, count: int) -> list[int]:
    """Return the numbers in a row, or zeros if the row does not exist.

    Raises:
        FormatError: the value is not *count* decimal numbers.
    """
    row = db.one("SELECT value FROM properties WHERE name = ?", (name,))
    if row is None:
        return [0] * count
    parts = row[0].decode("ascii", "replace").split() if type(row[0]) is bytes else []
    numbers = [number for part in parts if (number := decimal(part)) is not None]
    if len(parts) != count or len(numbers) != count:
        raise FormatError(
            str(db.path), f"the property {name!r} is damaged; unmount, and run s3fs-meta fsck -y"
        )
    return numbers


def _note(db: Database, keys: Iterable[ObjectKey]) -> None:
    db.run_many("INSERT OR IGNORE INTO properties VALUES (?, x'')", [(key,) for key in keys])


def _keys(db: Database, ours: str) -> set[ObjectKey]:
    return {ObjectKey(row[0]) for row in db.all(f"SELECT name FROM properties WHERE {ours}")}
