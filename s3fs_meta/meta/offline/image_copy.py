"""Converting a database copy to an image.

Owns: adding the locations of blocks that were being uploaded, and dropping the local tables, so
that any host can use the copy. Does not know: image pieces, manifests, the store. Tasks: all calls
block, so call them in a thread; no other task may use the copy.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from s3fs_meta.codec.fields import INTEGER_MAX
from s3fs_meta.errors import FormatError, MetadataError
from s3fs_meta.meta import placements
from s3fs_meta.meta.db import connections
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.placements import Placed
from s3fs_meta.meta.tables import blocks, packs
from s3fs_meta.meta.tables.properties import all_of
from s3fs_meta.model import BlockId, ObjectKey, PackId, Txg

# The copy need not be durable, because a failed copy is repeated.
_THROWAWAY: Final = Pragmas(journal_mode="off", synchronous="off")


class StoredPack(Protocol):
    """A pack that the store confirmed after the copy was made."""

    @property
    def pack(self) -> PackId:
        """Return the pack's number in the live database."""
        ...

    @property
    def object_key(self) -> ObjectKey:
        """Return the key of the pack's object."""
        ...

    @property
    def object_bytes(self) -> int:
        """Return the size of the pack's object."""
        ...


class ImageFacts(NamedTuple):
    """The values in the manifest of an image that describe its database."""

    uuid: str
    schema_version: int
    page_size: int
    database_bytes: int
    inodes: int
    file_bytes: int


def finish(
    path: Path,
    stored: Iterable[StoredPack],
    resolved: Sequence[Placed],
    lost: Collection[BlockId] = (),
    *,
    txg: Txg | None = None,
) -> None:
    """Convert a database copy to an image: set block locations and drop the local tables.

    Args:
        path: path of the copy.
        stored: packs that may be newer than the copy.
        resolved: new locations of blocks in the copy.
        lost: blocks whose last copy is lost; in the image they have no location.
        txg: the txg of the image, which becomes died_txg of packs without live blocks. If the row
            of counters has an earlier txg, the row is not changed.

    Raises:
        MetadataError: a cached block of the copy has no location; the copy is unusable.
        DatabaseError: SQLite failed, for example because the disk is full.
    """
    db = Database.open(path, _THROWAWAY)
    try:
        db.begin()
        recorded, db.counters.txg = db.counters.txg, db.counters.txg if txg is None else txg
        adopted = list(stored)
        for pack in adopted:
            packs.adopt(db, pack.pack, pack.object_key, pack.object_bytes)
        placements.apply(db, resolved)
        for pack in adopted:
            packs.note_if_dead(db, pack.pack)
        _drop_unnamed(db, lost)
        db.counters.txg = recorded
        # Check only cached blocks. A block with neither location nor file was lost on an earlier
        # host.
        sql = (
            "SELECT b.block FROM blocks AS b JOIN cached_blocks AS c ON c.block = b.block"
            " WHERE b.pack IS NULL LIMIT ?"
        )
        for (homeless,) in db.all(sql, (len(lost) + 1,)):
            if homeless not in lost:
                raise MetadataError(f"block {homeless} of the copied database is in no pack", 0)
        placements.drop_local_tables(db)
        db.commit()
    finally:
        db.close()


def _drop_unnamed(db: Database, lost: Collection[BlockId]) -> None:
    """Delete lost blocks to which no file refers."""
    for block in lost:
        row = blocks.find(db, block)
        if row is not None and row.refs == 0:
            blocks.delete(db, block)


def require_intact(path: Path, original: Path) -> None:
    """Raise FormatError if SQLite finds a damaged page in a copy of the database *original*.

    This reads the complete copy, but does not compare indexes with their tables.
    """
    what = "SQLite's quick_check returned nothing"
    try:
        db = Database.open(path, _THROWAWAY)
        try:
            row = db.one("PRAGMA quick_check(1)")
        finally:
            db.close()
    except FormatError as exc:
        what = exc.what
    else:
        if row is not None and row[0] == "ok":
            return
        what = what if row is None else f"SQLite's quick_check reports {row[0]!r}"
    raise FormatError(str(original), f"{what}; unmount, and run s3fs-meta fsck -y")


def describe(path: Path) -> ImageFacts:
    """Return the values for the manifest of a converted copy."""
    db = Database.open(path, _THROWAWAY, read_only=True)
    try:
        facts = all_of(db)
        page_size = db.one("PRAGMA page_size")
        assert page_size is not None, "every database has a page size"
        return ImageFacts(
            uuid=facts["uuid"].decode(),
            schema_version=int(facts["schema_version"]),
            page_size=page_size[0],
            database_bytes=path.stat().st_size,
            inodes=db.counters.inodes,
            file_bytes=min(db.counters.file_bytes, INTEGER_MAX),
        )
    finally:
        db.close()


def remove(path: Path) -> None:
    """Remove a database copy and SQLite's files next to it, if they exist."""
    connections.remove_files(path)
