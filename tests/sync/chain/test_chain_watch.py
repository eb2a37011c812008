"""The periodic check of a running mount that its last changelog is still in the bucket."""

import pytest

from s3fs_meta.bucket_errors import OlderBucketError
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.codec.image import NO_HASH
from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.model import Txg
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.chain.chain_watch import ChainWatch
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.damage import flipped
from tests.sync.conftest import Power
from tests.sync.history.readers import bucket_of
from tests.sync.opening.histories import written


async def test_check_of_the_last_changelog_costs_one_small_request(power: Power) -> None:
    """Only the first check after a mount reads the complete changelog; later checks are small."""
    await written(power)
    last = (await bucket_of(power)).points
    link = await last.newest()
    store = FaultyStore(power.store)
    watch = ChainWatch(store)

    for _ in range(3):
        await watch.require(link)
    await watch.require(Link(Txg(0), NO_HASH, 0))

    assert [call.method for call in store.calls] == ["get", "get_range", "get_range"]


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
@pytest.mark.parametrize("harm", ["missing", "short", "another"])
async def test_changelog_is_reported_missing_only_after_a_second_request(
    power: Power, harm: str, known: bool
) -> None:
    """A changelog counts as missing or replaced only if a second request confirms this."""
    await written(power)
    link = await (await bucket_of(power)).points.newest()
    key = key_of(link.txg)
    data = power.store.objects[key]
    store = FaultyStore(power.store)
    watch = ChainWatch(store)
    if known:
        watch.note(link, data)
    if harm == "missing":
        del power.store.objects[key]
    else:
        power.store.objects[key] = data[:-1] if harm == "short" else flipped(data, -1)

    with pytest.raises(OlderBucketError, match=f"txg {link.txg}.*the local state becomes the next"):
        await watch.require(link)
    assert len(store.calls) == 2
    store.down = StoreUnavailableError("x", 1, 0.0, "away")
    with pytest.raises(StoreUnavailableError):
        await watch.require(link)
    store.down = None
    power.store.objects[key] = data
    await watch.require(link)
