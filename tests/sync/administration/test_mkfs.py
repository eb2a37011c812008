"""Creating a filesystem with mkfs."""

from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.errors import NotEmptyError, UnconditionalStoreError
from s3fs_meta.limits import MIB, TEXT_OBJECT_BYTES_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.administration.mkfs import NewFilesystem, has_superblock, make_filesystem
from tests.sync.conftest import Power


async def test_mkfs_refuses_a_location_that_is_not_empty(power: Power) -> None:
    """mkfs changes nothing at a location that has a filesystem or other objects."""
    with pytest.raises(NotEmptyError, match="already contains a filesystem"):
        await power.make()
    power.store.objects.clear()
    power.store.objects["holiday.jpg"] = b""  # type: ignore[index]
    with pytest.raises(NotEmptyError, match="not empty"):
        await power.make()
    assert list(power.store.objects) == ["holiday.jpg"]


async def test_mkfs_ignores_the_probe_object_of_an_interrupted_mkfs(power: Power) -> None:
    """A killed mkfs may leave a probe object, which the next mkfs ignores."""
    power.store.objects.clear()
    power.store.objects[ObjectKey(f"probe/{'0' * 32}")] = b"first"

    await power.make()

    assert lease_codec.KEY in power.store.objects


@pytest.mark.parametrize("key", [superblock_codec.COPY_KEY, lease_codec.KEY])
async def test_mkfs_reports_an_incomplete_filesystem_after_a_conflict(
    power: Power, key: ObjectKey
) -> None:
    """If another process stores one of the objects, destroy can remove the new filesystem."""
    foreign = power.store.objects[key]
    power.store.objects.clear()

    def store_meanwhile(step: str) -> None:
        if step == "superblock put":
            power.store.objects[key] = foreign

    with pytest.raises(NotEmptyError, match=f"another process stored '{key}' .*destroy"):
        await power.make(store_meanwhile)

    assert superblock_codec.KEY in power.store.objects
    assert power.store.objects[key] == foreign
    with pytest.raises(NotEmptyError, match="s3fs-meta destroy removes it"):
        await power.make()


async def test_second_of_two_concurrent_mkfs_stores_nothing(power: Power) -> None:
    other = power.store.objects[superblock_codec.KEY]
    power.store.objects.clear()
    wanted = NewFilesystem(label="", block_bytes=1 * MIB, page_size=4096, passphrase=None)

    def store_meanwhile(_superblock: Superblock, _recovery_key: str | None) -> None:
        power.store.objects[superblock_codec.KEY] = other

    with pytest.raises(NotEmptyError, match="another process is creating"):
        await make_filesystem(
            power.store, wanted, power.home, SystemClock(), keep_key=store_meanwhile
        )

    assert power.store.objects == {superblock_codec.KEY: other}


@pytest.mark.parametrize("key", ["other/superblock", "a/b/pack/ab/1-ab" + "0" * 30])
async def test_mkfs_refuses_a_location_with_a_filesystem_below_it(power: Power, key: str) -> None:
    """The error names a filesystem below the URL even if the listing begins with other objects."""
    power.store.objects.clear()
    for number in range(5):
        power.store.objects[ObjectKey(f"a-note/{number}")] = b""
    power.store.objects[ObjectKey(key)] = b""

    with pytest.raises(
        NotEmptyError,
        match=f"{key.split('/s', maxsplit=1)[0].split('/pack', maxsplit=1)[0]} lies below",
    ):
        await power.make()


@pytest.mark.parametrize(
    ("data", "is_one"),
    [
        (b"s3fs-meta superblock 9\n{}", True),
        (b"notes about a superblock", False),
        (b"s3fs-meta superblock 1\n" + bytes(TEXT_OBJECT_BYTES_MAX), False),
        (None, False),
    ],
)
async def test_superblock_is_recognised_by_its_first_line(data: bytes | None, is_one: bool) -> None:
    """A damaged superblock is recognised by its first line, so mkfs refuses the location."""
    store = MemoryStore()
    if data is not None:
        store.objects[ObjectKey("superblock")] = data

    assert await has_superblock(store) == is_one


async def test_mkfs_refuses_a_store_that_ignores_conditional_writes(tmp_path: Path) -> None:
    """With --unsafe-single-writer, mkfs accepts a store that ignores conditional writes."""
    store = CarelessStore()
    wanted = NewFilesystem(label="", block_bytes=1 * MIB, page_size=4096, passphrase=None)

    with pytest.raises(UnconditionalStoreError, match="--unsafe-single-writer"):
        await make_filesystem(store, wanted, tmp_path, SystemClock())
    assert store.objects == {}

    accepted = replace(wanted, unsafe_single_writer=True)
    await make_filesystem(store, accepted, tmp_path, SystemClock())
    assert lease_codec.KEY in store.objects


class CarelessStore(MemoryStore):
    """A store that ignores the conditions of conditional writes."""

    @override
    async def create(self, key: ObjectKey, data: bytes | memoryview) -> str:
        """Write the object without checking for an existing object."""
        await self.put(key, data)
        return "etag"

    @override
    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: str) -> str:
        """Write the object without checking its version."""
        await self.put(key, data)
        return "etag"
