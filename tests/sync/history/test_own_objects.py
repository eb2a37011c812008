"""Objects that are a filesystem's own."""

import pytest

from s3fs_meta.codec import image as image_codec
from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.sync import removal
from s3fs_meta.sync.history.own_objects import own_objects
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import Power
from tests.sync.own import own, use


async def test_pieces_of_an_image_without_manifest_are_its_own(power: Power) -> None:
    """A writer that was killed before it wrote the manifest leaves them."""
    await use(power)
    for key in list(power.store.objects):
        if image_codec.parse_manifest_key(key) is not None:
            del power.store.objects[key]

    assert set(await own(power)) == set(power.store.objects)


async def test_damaged_manifest_is_known_by_its_pieces(power: Power) -> None:
    """Random digits are drawn for the names of an image, and each piece that opens proves them."""
    for key in power.store.objects:
        if image_codec.parse_manifest_key(key) is not None:
            power.store.objects[key] = b"rotten"

    assert set(await own(power)) == set(power.store.objects)


async def test_object_that_cannot_be_read_now_is_no_foreign_one(power: Power) -> None:
    """Nothing is decided without an answer of the store."""
    await use(power)
    contents = await removal.look(power.store)
    keys = await power.keys()
    faulty = FaultyStore(power.store)
    faulty.fail("get", StoreUnavailableError("changelog", 1, 0.0, "away"))

    with pytest.raises(StoreUnavailableError):
        await own_objects(faulty, keys.keyring, contents.named)


async def test_pieces_that_a_manifest_names_are_not_read(power: Power) -> None:
    """They are most of the bytes of the metadata."""
    await use(power)
    contents = await removal.look(power.store)
    keys = await power.keys()
    store = FaultyStore(power.store)

    found = await own_objects(store, keys.keyring, contents.named)

    assert found == contents.keys
    read = {call[1] for call in store.calls if call[0] == "get"}
    assert not any(image_codec.parse_piece_key(str(key)) for key in read)
