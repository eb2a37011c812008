"""Abandoned txgs: their list, and the conditions under which a host may abandon a txg."""

from contextlib import aclosing

from s3fs_meta.codec.changelog import key_of
from s3fs_meta.errors import SettingsError
from s3fs_meta.model import Txg
from s3fs_meta.sync.chain import abandoned_txgs
from s3fs_meta.sync.chain.abandoned_txgs import Mend, Right
from s3fs_meta.sync.history.versions import txg_log
from s3fs_meta.sync.history.versions.txg_log import Gap
from tests.sync.conftest import Power
from tests.sync.history.readers import bucket_of
from tests.sync.opening.histories import end_at, rot, written


async def test_number_of_listed_abandoned_txgs_is_limited(power: Power) -> None:
    """The list reports for each abandoned changelog whether it is damaged, missing or intact."""
    await written(power)
    rot(power, 6)
    del power.store.objects[key_of(Txg(7))]
    bucket = await bucket_of(power)
    kept = await bucket.points.link(Txg(5))

    lines = await abandoned_txgs.describe(
        power.store, bucket.keyring, bucket.uuid, kept, Txg(9), shown_max=3
    )

    assert lines[0].startswith("txg 6 is abandoned: its changelog is damaged")
    assert lines[0].endswith(" bytes")
    assert lines[1] == "txg 7 is abandoned: its changelog is missing"
    assert lines[2].startswith("txg 8 is abandoned: written 20")
    assert "epoch 1" in lines[2]
    assert lines[3:] == ["… and 1 more txg"]


async def test_host_abandons_txgs_of_another_host_only_with_permission(power: Power) -> None:
    """A host abandons txgs only if it wrote all of them, or if the user permits it."""
    await written(power)
    bucket = await bucket_of(power)
    lease = bucket.keeper.lease

    async def refused(mend: Mend, holder: str, kept: int = 8) -> str:
        right = Right(mend, lease, holder)
        try:
            await abandoned_txgs.require_right(
                power.store, bucket.keyring, bucket.uuid, Txg(kept), Txg(9), right
            )
        except SettingsError as exc:
            return exc.message
        return ""

    assert await refused(Mend(), lease.holder) == ""
    assert "another host may have written" in await refused(Mend(), lease.holder, kept=0)
    assert "fsck -y --end-at=8 abandons txg 9" in await refused(Mend(), "another")
    assert await refused(Mend(Txg(8)), "another") == ""
    assert "--end-at=8 abandons txg 9" in await refused(Mend(Txg(7)), "another")
    assert await refused(Mend(anything=True), "another") == ""


async def test_history_listing_includes_abandoned_txgs(power: Power) -> None:
    """The history lists each abandoned txg as a gap, with the reason."""
    await written(power)
    rot(power, 7)
    async with power.session("b", options=end_at(6), tasks=False) as session:
        await session.publish_as_txg()
        await session.close()
    bucket = await bucket_of(power)

    async with aclosing(
        txg_log.backwards(bucket, await bucket.points.newest(), Txg(0))
    ) as changelogs:
        found = [one async for one in changelogs]

    assert [one.txg for one in found] == list(range(found[0].txg, 0, -1))
    gaps = {one.txg: one.why for one in found if isinstance(one, Gap)}
    assert sorted(gaps) == [7, 8, 9]
    assert "ended the chain" in gaps[Txg(9)]
    assert "ended the chain" not in gaps[Txg(7)]
