"""Recognising objects of this filesystem."""

import pytest

from s3fs_meta.codec import image as image_codec
from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.sync import removal
from s3fs_meta.sync.history.own_objects import own_objects
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import Power
from tests.sync.own import own, use


async def test_pieces_without_manifest_are_own_objects(power: Power) -> None:
    """A writer that was killed before it wrote the manifest leaves them."""
    await use(power)
    for key in list(power.store.objects):
        if image_codec.parse_manifest_key(key) is not None:
            del power.store.objects[key]

    assert set(await own(power)) == set(power.store.objects)


async def test_damaged_manifest_is_recognised_by_its_pieces(power: Power) -> None:
    """Each image has random digits in its names, and every piece that opens proves them."""
    for key in power.store.objects:
        if image_codec.parse_manifest_key(key) is not None:
            power.store.objects[key] = b"rotten"

    assert set(await own(power)) == set(power.store.objects)


async def test_unreadable_object_is_not_foreign(power: Power) -> None:
    """Without an answer of the store nothing is decided."""
    await use(power)
    contents = await removal.list_contents(power.store)
    keys = await power.keys()
    faulty = FaultyStore(power.store)
    faulty.fail("get", StoreUnavailableError("changelog", 1, 0.0, "away"))

    with pytest.raises(StoreUnavailableError):
        await own_objects(faulty, keys.keyring, contents.named)


async def test_pieces_named_by_a_manifest_are_not_read(power: Power) -> None:
    """Pieces that a manifest names are not read, which saves requests."""
    await use(power)
    contents = await removal.list_contents(power.store)
    keys = await power.keys()
    store = FaultyStore(power.store)

    found = await own_objects(store, keys.keyring, contents.named)

    assert found == contents.keys
    read = {call[1] for call in store.calls if call[0] == "get"}
    assert not any(image_codec.parse_piece_key(str(key)) for key in read)
