"""The txgs in names that the chain can have reached."""

import pytest

from s3fs_meta.codec.changelog import key_of
from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.limits import TXG_GAP_MAX, TXG_GAPS_MAX, TXG_LEAP_MAX
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.sync.chain import names
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import Power
from tests.sync.opening.histories import written


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
async def test_every_object_that_names_a_txg_blocks_its_number(power: Power, key: str) -> None:
    """An object of any kind that names a txg near the chain prevents its number from being used."""
    power.store.objects[ObjectKey(key)] = b"?"
    power.store.objects[ObjectKey("pack/00/x")] = b"?"
    keyring = (await power.keys()).keyring
    last = await names.last_name(power.store, keyring, Txg(0))
    assert last == (75 if key.startswith("level") else 77)


async def reached(power: Power, known: int, *txgs: int) -> tuple[int, int]:
    """Return the last txg that changelogs of these numbers show, and the number of requests."""
    store = FaultyStore(power.store)
    keyring = (await power.keys()).keyring
    found = [(Txg(txg), key_of(Txg(txg))) for txg in txgs]
    return await names.reached(store, keyring, Txg(known), found), len(store.calls)


async def test_names_without_a_gap_cost_no_request(power: Power) -> None:
    """They count, whatever they hold: lost objects may have been between them."""
    assert await reached(power, 9) == (9, 0)
    assert await reached(power, 9, 3, 10, 11, 11 + TXG_GAP_MAX) == (11 + TXG_GAP_MAX, 0)


async def test_names_beyond_a_gap_need_an_authentic_object(power: Power) -> None:
    """One of the last or first ones of a run proves it, and with it all before it."""
    await written(power)  # txgs 1 to 9
    ahead = 9 + TXG_GAP_MAX + 1
    power.store.objects[key_of(Txg(ahead))] = power.store.objects[key_of(Txg(9))]
    assert await reached(power, 9, ahead) == (9, 1)
    assert await reached(power, 9, 10, ahead + 1) == (10, 1)
    before = -2 * TXG_GAP_MAX
    assert await reached(power, before, before + 1, 8, 9, ahead) == (9, 2)
    assert await reached(power, before, *range(8, 20)) == (19, 3)


async def test_impossible_numbers_are_not_read(power: Power) -> None:
    """From them no next txg could be counted."""
    assert await reached(power, 9, 10 + TXG_LEAP_MAX, (1 << 63) - 2) == (9, 0)


async def test_many_foreign_names_cost_a_bounded_number_of_requests(power: Power) -> None:
    """The number of foreign objects that are read is bounded."""
    far = [txg * 1000 for txg in range(1, 1000)]
    assert await reached(power, 9, *far) == (9, TXG_GAPS_MAX)


async def test_unavailable_object_is_not_foreign(power: Power) -> None:
    """A timeout proves nothing."""
    store = FaultyStore(power.store)
    keyring = (await power.keys()).keyring
    store.fail("get", StoreUnavailableError("changelog", 1, 0.0, "away"))
    with pytest.raises(StoreUnavailableError):
        await names.reached(store, keyring, Txg(9), [(Txg(500), key_of(Txg(500)))])
