"""The last txg of the chain, as derived from the keys of objects."""

import pytest

from s3fs_meta.codec.changelog import key_of
from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.limits import TXG_GAP_MAX, TXG_GAPS_MAX, TXG_LEAP_MAX
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.sync.chain import chain, names
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import Power
from tests.sync.opening.histories import rot, written


@pytest.mark.parametrize(
    "key",
    [
        "changelog/000000000077",
        "changelog-part/000000000077-3-0123456789abcdef/000000",
        "image/000000000077-3-0123456789abcdef/manifest",
        "image/000000000077-3-0123456789abcdef/000003",
        "level/1/000000000071-000000000075",
    ],
)
async def test_txg_number_in_an_existing_object_key_is_not_used_again(
    power: Power, key: str
) -> None:
    """A txg number is used if any object key contains the number."""
    power.store.objects[ObjectKey(key)] = b"?"
    power.store.objects[ObjectKey("pack/00/x")] = b"?"
    keyring = (await power.keys()).keyring
    last = await names.last_name(power.store, keyring, Txg(0))
    assert last == (75 if key.startswith("level") else 77)


async def reached(power: Power, known: int, *txgs: int) -> tuple[int, int]:
    """Return the last txg that the changelog keys prove, and the number of requests."""
    store = FaultyStore(power.store)
    keyring = (await power.keys()).keyring
    found = [(Txg(txg), key_of(Txg(txg))) for txg in txgs]
    return await names.reached(store, keyring, Txg(known), found), len(store.calls)


async def test_changelog_keys_after_a_small_gap_are_trusted_without_a_request(power: Power) -> None:
    """Lost changelogs may leave a small gap, so a changelog key after such a gap is accepted."""
    assert await reached(power, 9) == (9, 0)
    assert await reached(power, 9, 3, 10, 11, 11 + TXG_GAP_MAX) == (11 + TXG_GAP_MAX, 0)


async def test_changelog_keys_after_a_large_gap_count_only_if_a_writer_made_one_of_them(
    power: Power,
) -> None:
    """After a large gap, one authentic changelog proves that all earlier numbers were used."""
    await written(power)  # Txgs 1 to 9 contain the written files.
    ahead = 9 + TXG_GAP_MAX + 1
    power.store.objects[key_of(Txg(ahead))] = power.store.objects[key_of(Txg(9))]
    assert await reached(power, 9, ahead) == (9, 1)
    assert await reached(power, 9, 10, ahead + 1) == (10, 1)
    before = -2 * TXG_GAP_MAX
    assert await reached(power, before, before + 1, 8, 9, ahead) == (9, 2)
    assert await reached(power, before, *range(8, 20)) == (19, 3)


async def test_changelog_keys_with_impossible_txgs_are_ignored(power: Power) -> None:
    """A changelog key with an impossible txg is ignored, because no txg could follow it."""
    assert await reached(power, 9, 10 + TXG_LEAP_MAX, (1 << 63) - 2) == (9, 0)


async def test_many_forged_changelog_keys_cost_a_limited_number_of_requests(power: Power) -> None:
    far = [txg * 1000 for txg in range(1, 1000)]
    assert await reached(power, 9, *far) == (9, TXG_GAPS_MAX)


async def test_unavailable_changelog_is_not_reported_as_forged(power: Power) -> None:
    """If a changelog cannot be read because of a timeout, it may still be authentic."""
    store = FaultyStore(power.store)
    keyring = (await power.keys()).keyring
    store.fail("get", StoreUnavailableError("changelog", 1, 0.0, "away"))
    with pytest.raises(StoreUnavailableError):
        await names.reached(store, keyring, Txg(9), [(Txg(500), key_of(Txg(500)))])


async def test_changelogs_after_a_gap_are_listed_only_if_one_of_them_is_authentic(
    power: Power,
) -> None:
    await written(power)
    keyring = (await power.keys()).keyring
    power.store.objects[key_of(Txg(9 + names.CHANGELOG_STEP_MAX + 1))] = b"?"
    assert await chain.numbers_from(power.store, keyring, Txg(8)) == [8, 9]

    del power.store.objects[key_of(Txg(7))]
    assert await chain.numbers_after(power.store, keyring, Txg(6)) == [8, 9]


async def test_part_of_a_listing_does_not_hide_later_authentic_changelogs(power: Power) -> None:
    """The first listed changelogs after a gap may all be damaged."""
    await written(power, last=20)
    for txg in range(3, 13):
        del power.store.objects[key_of(Txg(txg))]
    rot(power, 13, 14, 15)
    keyring = (await power.keys()).keyring

    assert await chain.numbers_after(power.store, keyring, Txg(2), 2) == [13, 14]
