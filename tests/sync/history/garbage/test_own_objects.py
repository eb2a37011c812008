"""Recognising this filesystem's objects in a bucket."""

import pytest

from s3fs_meta.codec import image as image_codec
from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.sync.administration import removal
from s3fs_meta.sync.history.garbage.own_objects import own_objects
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import Power
from tests.sync.own import own, use


async def test_image_pieces_without_a_manifest_are_recognised_as_own_objects(power: Power) -> None:
    """A killed writer may leave image pieces without a manifest in the bucket."""
    await use(power)
    for key in list(power.store.objects):
        if image_codec.parse_manifest_key(key) is not None:
            del power.store.objects[key]

    assert set(await own(power)) == set(power.store.objects)


async def test_damaged_manifest_is_recognised_by_its_pieces(power: Power) -> None:
    """All object keys of an image contain the same random digits, which identify its pieces."""
    await use(power)
    for key in power.store.objects:
        if image_codec.parse_manifest_key(key) is not None:
            power.store.objects[key] = b"rotten"

    assert set(await own(power)) == set(power.store.objects)


async def test_unreadable_object_is_not_treated_as_foreign(power: Power) -> None:
    """An object that cannot be read is neither own nor foreign until the store responds."""
    await use(power)
    contents = await removal.list_contents(power.store)
    keys = await power.keys()
    faulty = FaultyStore(power.store)
    faulty.fail("get", StoreUnavailableError("changelog", 1, 0.0, "away"))

    with pytest.raises(StoreUnavailableError):
        await own_objects(faulty, keys.keyring, contents.named)


async def test_image_pieces_listed_in_a_manifest_are_not_read(power: Power) -> None:
    await use(power)
    contents = await removal.list_contents(power.store)
    keys = await power.keys()
    store = FaultyStore(power.store)

    found = await own_objects(store, keys.keyring, contents.named)

    assert found == contents.keys
    read = {call[1] for call in store.calls if call[0] == "get"}
    assert not any(image_codec.parse_piece_key(str(key)) for key in read)
