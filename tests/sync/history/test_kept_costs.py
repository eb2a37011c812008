"""The cost of kept points."""

from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import packs
from s3fs_meta.model import ObjectKey, PackId, Txg
from s3fs_meta.sync.history.kept_costs import costs_of
from tests.codec.kept_points import point_of
from tests.meta.conftest import db, make_database

__all__ = ["db", "make_database"]

KEYRING = Keyring(None, bytes(range(32)))


def make_pack(db: Database, size_bytes: int, died: int | None) -> PackId:
    """Make a stored pack whose last block died in a txg; None: it is alive."""
    pack = packs.create(db, ObjectKey(f"pack/00/1-{db.counters.next_pack:032x}"), size_bytes)
    packs.stored(db, pack)
    packs.add_live_bytes(db, pack, 1)
    if died is not None:
        db.counters.txg = died
        packs.drop_live_bytes(db, pack, 1)
    return pack


async def test_pack_counts_for_a_point_if_no_other_needs_it(db: Database) -> None:
    """Packs that are alive, or died after the floor, cost nothing without the point, too."""
    make_pack(db, 1, 5)  # died before both points
    make_pack(db, 20, 15)  # only the first one needs it
    make_pack(db, 300, 25)  # both need it
    first = point_of(KEYRING, "a", txg=10, image=1, next_pack=db.counters.next_pack)
    make_pack(db, 4000, 25)  # only the second one needs it
    make_pack(db, 50_000, 90)  # retained
    make_pack(db, 600_000, None)
    second = point_of(KEYRING, "b", txg=20, image=1, next_pack=db.counters.next_pack)
    make_pack(db, 7_000_000, 30)  # made after both

    found = await costs_of(db, [second, first], Txg(50))
    assert found.alone == {first.key: 20, second.key: 4000}
    assert found.total == 4320
    later = await costs_of(db, [second, first], Txg(95))
    assert later.alone[second.key] == 54_000
    assert (await costs_of(db, [], Txg(95))).total == 0
