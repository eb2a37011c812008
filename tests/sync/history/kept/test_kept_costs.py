"""The storage costs of kept points."""

from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import packs
from s3fs_meta.model import ObjectKey, PackId, Txg
from s3fs_meta.sync.history.kept.kept_costs import costs_of
from tests.codec.kept_points import point_of
from tests.meta.conftest import db, make_database

__all__ = ["db", "make_database"]

KEYRING = Keyring(None, bytes(range(32)))


def make_pack(db: Database, size_bytes: int, died: int | None) -> PackId:
    """Create a stored pack that died in txg *died*, or that is alive if *died* is None."""
    pack = packs.create(db, ObjectKey(f"pack/00/1-{db.counters.next_pack:032x}"), size_bytes)
    packs.stored(db, pack)
    packs.add_live_bytes(db, pack, 1)
    if died is not None:
        db.counters.txg = died
        packs.drop_live_bytes(db, pack, 1)
    return pack


async def test_cost_of_a_kept_point_covers_only_packs_that_it_alone_needs(db: Database) -> None:
    """A kept point costs nothing for packs that are alive or that the retention keeps."""
    make_pack(db, 1, 5)  # The pack was dead at both kept points.
    make_pack(db, 20, 15)  # Only the first kept point needs the pack.
    make_pack(db, 300, 25)  # Both kept points need this pack.
    first = point_of(KEYRING, "a", txg=10, image=1, next_pack=db.counters.next_pack)
    make_pack(db, 4000, 25)  # Only the second kept point needs the pack.
    make_pack(db, 50_000, 90)  # The retention still keeps this pack.
    make_pack(db, 600_000, None)
    second = point_of(KEYRING, "b", txg=20, image=1, next_pack=db.counters.next_pack)
    make_pack(db, 7_000_000, 30)  # The pack was created after both kept points.

    found = await costs_of(db, [second, first], Txg(50))
    assert found.alone == {first.key: 20, second.key: 4000}
    assert found.total == 4320
    later = await costs_of(db, [second, first], Txg(95))
    assert later.alone[second.key] == 54_000
    assert (await costs_of(db, [], Txg(95))).total == 0
