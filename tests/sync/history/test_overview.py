"""The overview of a filesystem, computed only from the objects in its bucket."""

import pytest

from s3fs_meta.codec import level as level_codec
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.codec.superblock import COPY_KEY
from s3fs_meta.errors import NotAFilesystemError, PassphraseError
from s3fs_meta.limits import OVERVIEW_PROBES_MAX
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.objects.metrics import CountingStore
from s3fs_meta.sync.history import overview
from s3fs_meta.sync.history.overview import Newest, Overview
from s3fs_meta.sync.upload.bounds import UploadBounds
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.damage import flipped
from tests.sync.conftest import Power, write_file
from tests.sync.history.set_clock import FAR, SECOND_NS, SetClock, nine_txgs, session_at

pytestmark = pytest.mark.thorough

IMAGE = 6
LAST = 9


async def ship_until(power: Power, last: int) -> None:
    """Ship txgs up to a number, one per second, and make the level objects."""
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        while session.link.txg < last:
            clock.time_ns += SECOND_NS
            write_file(session, b"%d" % clock.time_ns)
            await session.flush()
        await session.leveler.make_due()


async def examined(power: Power) -> Overview:
    """Return the overview as seen by a host without local state."""
    return await overview.examine(
        power.store, power.remembered("-"), power.secret, SetClock(FAR + 100 * SECOND_NS)
    )


async def test_overview_reports_the_newest_txg_and_the_lease_holder_without_writes(
    power: Power,
) -> None:
    await nine_txgs(power)
    before = dict(power.store.objects)

    found = await examined(power)

    assert found.newest == Newest(Txg(LAST), FAR + LAST * SECOND_NS)
    assert (found.changelogs, found.reached, found.faults) == (LAST - IMAGE, LAST, ())
    assert found.image is not None
    assert found.image.txg == IMAGE
    assert found.lease is not None
    assert found.lease.released
    assert power.store.objects == before


async def test_overview_of_a_killed_writer_reports_an_unreleased_lease(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        write_file(session, b"shipped")
        await session.flush()

    found = await examined(power)

    assert found.lease is not None
    assert not found.lease.released
    assert found.faults == ()


async def test_overview_of_a_filesystem_that_was_never_mounted_has_no_faults(power: Power) -> None:
    found = await examined(power)
    assert found.newest is not None
    assert (found.newest.txg, found.changelogs, found.faults) == (0, 0, ())


async def test_overview_of_nine_txgs_sends_nine_requests(power: Power) -> None:
    """The overview finds the other changelogs in a listing, and does not read them."""
    await nine_txgs(power)
    store = CountingStore(power.store)

    await overview.examine(store, power.remembered("-"), power.secret, SetClock(FAR))

    counts = {method: one.requests for method, one in store.counts.items() if one.requests}
    assert counts == {"get": 6, "list": 3}


@pytest.mark.parametrize("levels", [False, True], ids=["no levels", "levels"])
async def test_missing_changelog_is_reported_as_a_fault_unless_a_later_image_exists(
    power: Power, *, levels: bool
) -> None:
    """A missing changelog makes later txgs unreachable, unless a later image exists."""
    await nine_txgs(power, levels=levels)
    del power.store.objects[key_of(Txg(3))]
    assert (await examined(power)).faults == ()
    del power.store.objects[key_of(Txg(8))]

    found = await examined(power)

    assert found.faults == ("changelog 8 is missing",)
    assert found.newest == Newest(Txg(LAST), FAR + LAST * SECOND_NS)
    assert found.reached == 7


async def test_level_object_replaces_a_missing_changelog(power: Power) -> None:
    """If a level object replaces missing changelogs, the last txg is reported as reachable."""
    await ship_until(power, 12)
    assert level_codec.key_of(1, Txg(10)) in power.store.objects
    del power.store.objects[key_of(Txg(8))]
    del power.store.objects[key_of(Txg(9))]

    found = await examined(power)

    assert found.faults == ("changelogs 8 to 9 are missing",)
    assert found.reached == 12


async def test_newest_txg_is_the_txg_before_a_damaged_last_changelog(power: Power) -> None:
    await nine_txgs(power)
    key = key_of(Txg(LAST))
    power.store.objects[key] = flipped(power.store.objects[key], 60)

    found = await examined(power)

    assert found.newest == Newest(Txg(LAST - 1), FAR + (LAST - 1) * SECOND_NS)
    assert found.reached == LAST - 1
    [fault] = found.faults
    assert fault.startswith(f"{key!r} cannot be read: ")


async def test_lost_last_changelog_in_a_level_object_is_reported_as_a_fault(power: Power) -> None:
    """A level object proves that a lost changelog existed and contains its changes."""
    await ship_until(power, 10)
    del power.store.objects[key_of(Txg(10))]

    found = await examined(power)

    assert found.faults == (f"object {key_of(Txg(10))!r} is missing",)
    assert (found.newest and found.newest.txg, found.reached) == (10, 10)


async def test_many_damaged_changelogs_cost_a_bounded_number_of_requests(power: Power) -> None:
    clock = SetClock(FAR)
    async with session_at(power, clock) as session:
        while session.link.txg < OVERVIEW_PROBES_MAX + 5:
            write_file(session, b"%d" % session.link.txg)
            await session.flush()
    for txg in range(2, OVERVIEW_PROBES_MAX + 6):
        power.store.objects[key_of(Txg(txg))] = b"damaged"
    store = CountingStore(power.store)

    found = await overview.examine(store, power.remembered("-"), power.secret, clock)

    assert len(found.faults) == OVERVIEW_PROBES_MAX
    assert found.newest == Newest(Txg(5), None)
    assert sum(one.requests for one in store.counts.values()) < 10 + 4 * OVERVIEW_PROBES_MAX


async def test_missing_part_of_the_last_changelog_is_reported_as_a_fault(power: Power) -> None:
    bounds = UploadBounds(run_bytes=2000, locations=7)
    async with power.session("a", tasks=False, bounds=bounds) as session:
        for number in range(50):
            write_file(session, b"%d" % number)
            session.durability.commit()
        await session.flush()
    parts = [key for key in power.store.objects if key.startswith("changelog-part/")]
    assert (await examined(power)).faults == ()
    del power.store.objects[parts[0]]

    assert (await examined(power)).faults == (f"{parts[0]!r} is missing",)


async def test_missing_piece_of_the_last_image_is_reported_as_a_fault(power: Power) -> None:
    await nine_txgs(power)
    found = await examined(power)
    assert found.image is not None
    del power.store.objects[found.image.pieces[0].key]

    assert (await examined(power)).faults == ("the last image: 1 of its 1 pieces are missing",)


async def test_damaged_manifest_is_reported_and_the_newest_txg_is_still_found(power: Power) -> None:
    await nine_txgs(power)
    head = (await examined(power)).head
    assert head is not None
    power.store.objects[head.manifest_key] = b"damaged"

    found = await examined(power)

    assert found.image is None
    assert found.newest == Newest(Txg(LAST), FAR + LAST * SECOND_NS)
    assert [fault.split(":")[0] for fault in found.faults] == ["the last image"]


async def test_lost_lease_is_reported_and_the_image_is_found_without_the_lease(
    power: Power,
) -> None:
    await nine_txgs(power)
    del power.store.objects[ObjectKey("lease")]
    store = FaultyStore(power.store)

    found = await overview.examine(store, power.remembered("-"), power.secret, SetClock(FAR))

    # The overview does not list packs, which are most of the objects in a bucket.
    assert not [one for one in store.calls if "pack/".startswith(one.key) and one.method == "list"]
    assert len(store.calls) < 15
    assert found.lease is None
    assert found.image is not None
    assert found.image.txg == IMAGE
    assert found.newest is not None
    assert found.newest.txg == LAST
    assert found.faults == ("the lease is missing; s3fs-meta fsck -y makes a new lease",)


async def test_lost_copy_of_the_superblock_is_reported_as_a_fault(power: Power) -> None:
    await nine_txgs(power)
    del power.store.objects[COPY_KEY]

    [fault] = (await examined(power)).faults

    assert fault.startswith(f"the object {COPY_KEY!r}: ")


async def test_overview_with_a_wrong_passphrase_or_an_empty_bucket_is_an_error(
    power: Power,
) -> None:
    if power.encrypted:
        power.passphrase = b"wrong"
        with pytest.raises(PassphraseError):
            await examined(power)
    power.store = MemoryStore()
    with pytest.raises(NotAFilesystemError):
        await examined(power)


async def test_newest_txg_and_gaps_are_found_from_object_keys_alone(power: Power) -> None:
    """The newest txg is found by object keys, without a passphrase for the content.

    It ignores objects whose names contain a txg far after the newest changelog.
    """
    await nine_txgs(power)
    power.store.objects[key_of(Txg(1000))] = b"foreign"
    clock = SetClock(FAR)

    found = await overview.examine_names(power.store, power.remembered("-"), clock)

    assert found.newest is not None
    assert (found.newest.txg, found.changelogs, found.reached) == (LAST, LAST - IMAGE, LAST)
    assert (found.proven, found.faults, found.image) == (False, (), None)
    del power.store.objects[key_of(Txg(7))]
    found = await overview.examine_names(power.store, power.remembered("-"), clock)
    assert (found.faults, found.reached) == (("changelog 7 is missing",), None)
    power.store.objects[ObjectKey("lease")] = b"damaged"
    found = await overview.examine_names(power.store, power.remembered("-"), clock)
    assert (found.lease, found.newest, len(found.faults)) == (None, None, 1)
