"""The proof that the keys of a superblock open the objects in the bucket."""

import pytest

from s3fs_meta.bucket_errors import LostSuperblockError
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.superblock import COPY_KEY, KEY
from s3fs_meta.errors import NewerFormatError
from s3fs_meta.sync.superblock.proof import opens_an_image, require_own_keys
from tests.sync.conftest import Power, write_file
from tests.sync.superblock.foreign import foreign_superblock


async def _require(power: Power) -> None:
    keys = await power.keys()
    await require_own_keys(power.store, keys.keyring, keys.superblock.uuid)


async def test_keys_of_another_filesystem_open_no_object_of_this_filesystem(power: Power) -> None:
    """The error about wrong keys names a remedy and an object that the keys do not open."""
    foreign = superblock_codec.decode(KEY, foreign_superblock())
    keyring = superblock_codec.unlock_plain(foreign)

    with pytest.raises(LostSuperblockError, match=r"image/.*fsck -y on a host"):
        await require_own_keys(power.store, keyring, foreign.uuid)
    assert not await opens_an_image(power.store, keyring, foreign.uuid)
    await _require(power)


async def test_superblock_with_another_uuid_is_refused(power: Power) -> None:
    """A superblock must have the UUID in the objects, even if its keys open the objects."""
    keyring = (await power.keys()).keyring

    assert not await opens_an_image(power.store, keyring, "01234567-89ab-cdef-0123-456789abcdef")


@pytest.mark.parametrize("left", ["image/", "changelog/", "pack/"])
async def test_intact_objects_of_one_kind_are_sufficient_to_verify_the_superblock(
    power: Power, left: str
) -> None:
    """One kind of intact objects proves the superblock, even if all other objects are damaged."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"content" * 1000)
        await session.flush()
        await session.close()
    for key in power.store.objects:
        if "/" in key and not key.startswith(left):
            power.store.objects[key] = b"damaged"

    await _require(power)


async def test_image_pieces_verify_the_superblock_if_every_manifest_is_damaged(
    power: Power,
) -> None:
    """In a new filesystem, only the image by mkfs can prove the superblock."""
    for key in power.store.objects:
        if key.endswith("/manifest"):
            power.store.objects[key] = b"damaged"

    await _require(power)


async def test_superblock_of_an_interrupted_mkfs_is_accepted(power: Power) -> None:
    """Without other objects in the bucket, no superblock can be refused as foreign."""
    power.store.objects = {key: power.store.objects[key] for key in (KEY, COPY_KEY)}

    await _require(power)


async def test_objects_of_a_newer_program_are_not_treated_as_foreign_objects(power: Power) -> None:
    for key, data in power.store.objects.items():
        if "/" in key:
            power.store.objects[key] = data[:8] + b"\0\7" + data[10:-1] + b"?"

    with pytest.raises(NewerFormatError):
        await _require(power)
