"""The search for garbage in the bucket; ``test_reclaim`` tests the deletion of garbage."""

from dataclasses import replace

import pytest

from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec.image import ManifestRef
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import BadRowError, NewerFormatError
from s3fs_meta.limits import RECLAIM_PACK_ROWS
from s3fs_meta.meta.tables import packs
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.sync.history.garbage import orphan_packs
from s3fs_meta.sync.history.garbage.garbage_search import Finder, StoredImages
from s3fs_meta.sync.history.garbage.orphan_packs import OrphanPacks
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.packs import stray_pack
from tests.sync.conftest import Power, write_file


def _with_another_time(key: ObjectKey, data: bytes, keyring: Keyring) -> bytes:
    """Return a manifest that is valid but was not written by any host."""
    manifest = image_codec.decode(key, data, keyring)
    forged = replace(manifest, created_ns=manifest.created_ns + 1)
    return image_codec.encode(forged, key, keyring)


async def test_only_images_that_can_be_restored_are_listed(power: Power) -> None:
    """An image is listed if its objects are complete and intact, even without its changelog."""
    async with power.session("a", tasks=False) as session:
        for number in range(4):
            write_file(session, b"%d" % number)
            await session.imager.make()
        opened = session.volume
        stored_images = StoredImages(power.store, opened.keyring, opened.superblock.uuid)
        images = await stored_images.list_images()
        assert len(images) == 5
        assert all(stored_images.stored_bytes(one) > 0 for one in images)

        objects = power.store.objects
        objects[images[1].key] = objects[images[1].key][:-1]
        del objects[ObjectKey(images[2].key.replace("manifest", "000000"))]
        del objects[ObjectKey(f"changelog/{images[3].txg:012d}")]
        again = StoredImages(power.store, opened.keyring, opened.superblock.uuid)
        # No changelog connects this image with earlier or later txgs.
        only = images[3]._replace(is_txg=True)
        assert await again.list_images() == [images[0], only, images[4]]

        gone, pieces = await again.garbage({images[at].key for at in (0, 3, 4)}, images[4].txg)
        assert [info.key for info in gone] == [images[2].key], "a damaged image may have a copy"
        assert pieces == []

        stay = {images[at].key for at in (0, 3, 4)}
        gone, pieces = await again.garbage(stay, images[4].txg, images[3].txg)
        assert [info.key for info in gone] == [images[1].key, images[2].key], "both are older"
        assert {info.key.split("/")[1] for info in pieces} == {images[1].key.split("/")[1]}


async def test_image_with_a_wrong_manifest_hash_is_not_listed(
    power: Power, caplog: pytest.LogCaptureFixture
) -> None:
    """In an unencrypted bucket a forged manifest is detected by the recorded hash."""
    async with power.session("a", tasks=False) as session:
        for number in range(3):
            write_file(session, b"%d" % number)
            await session.imager.make()
        opened = session.volume
        finder = Finder(session.db, power.store, opened.keyring, opened.superblock.uuid)
        images = await finder.images()
        # The recorded head contains the hashes of the current manifest and the previous manifest.
        for at in (3, 2):
            key, honest = images[at].key, power.store.objects[images[at].key]
            power.store.objects[key] = _with_another_time(key, honest, opened.keyring)
            fresh = Finder(session.db, power.store, opened.keyring, opened.superblock.uuid)
            counting = await fresh.images()
            assert key not in {one.key for one in counting}
            assert f"{key}, which does not match its recorded hash" in caplog.text
            stay = {one.key for one in counting}
            assert await fresh.stored_images.garbage(stay, Txg(99), images[at].txg) == ([], [])
            gone, _pieces = await fresh.stored_images.garbage(stay, Txg(99), Txg(99))
            assert [info.key for info in gone] == [key]
            power.store.objects[key] = honest


@pytest.mark.parametrize("at", [3, 2])
async def test_manifest_hash_in_a_kept_point_does_not_replace_the_recorded_hash(
    power: Power, at: int
) -> None:
    """A forged kept point must not make garbage collection accept a forged image."""
    async with power.session("a", tasks=False) as session:
        for number in range(3):
            write_file(session, b"%d" % number)
            await session.imager.make()
        opened = session.volume
        finder = Finder(session.db, power.store, opened.keyring, opened.superblock.uuid)
        images = await finder.images()
        key = images[at].key
        assert await finder.images([ManifestRef(key, "0" * 64)]) == images

        data = _with_another_time(key, power.store.objects[key], opened.keyring)
        power.store.objects[key] = data
        fresh = Finder(session.db, power.store, opened.keyring, opened.superblock.uuid)
        claim = ManifestRef(key, image_codec.content_hash(data))
        assert key not in {one.key for one in await fresh.images([claim])}


async def test_replaced_manifest_is_read_a_second_time(power: Power) -> None:
    """If the size or time of a manifest changes, the manifest is read a second time."""
    async with power.session("a", tasks=False) as session:
        opened = session.volume
        write_file(session, b"x")
        await session.imager.make()
        finder = Finder(session.db, power.store, opened.keyring, opened.superblock.uuid)
        images = await finder.images()
        power.store.objects[images[1].key] += b"?"

        assert await finder.images() == images[:1]


async def test_image_whose_pieces_have_the_wrong_total_size_is_not_listed(power: Power) -> None:
    """An image is incomplete if its pieces are smaller or larger than its database."""
    async with power.session("a", tasks=False) as session:
        opened = session.volume
        [image] = await StoredImages(
            power.store, opened.keyring, opened.superblock.uuid
        ).list_images()
        manifest = image_codec.decode(image.key, power.store.objects[image.key], opened.keyring)
        first = manifest.pieces[0]._replace(plain_bytes=4096)
        second = first._replace(key=ObjectKey(first.key[:-1] + "1"))
        many = replace(manifest, pieces=(first, second), database_bytes=8192)
        power.store.objects[image.key] = image_codec.encode(many, image.key, opened.keyring)
        stored_images = StoredImages(power.store, opened.keyring, opened.superblock.uuid)

        assert await stored_images.list_images() == []
        assert await stored_images.garbage(set(), Txg(99)) == ([], [])


async def test_pieces_of_an_image_that_is_being_uploaded_are_not_garbage(power: Power) -> None:
    """Pieces without a manifest may belong to an image that is being uploaded."""
    piece = ObjectKey("image/000000000007-1-0123456789abcdef/000000")
    async with power.session("a", tasks=False) as session:
        opened = session.volume
        power.store.objects[piece] = image_codec.encode_piece(piece, b"rows", opened.keyring)
        stored_images = StoredImages(power.store, opened.keyring, opened.superblock.uuid)
        images = await stored_images.list_images()
        stay = {one.key for one in images}
        assert await stored_images.garbage(stay, Txg(7)) == ([], [])
        assert [info.key for info in (await stored_images.garbage(stay, Txg(8)))[1]] == [piece]


async def test_image_of_an_unknown_version_is_not_garbage(power: Power) -> None:
    """A manifest that claims a newer version but is not authentic must not stop reclaim."""
    manifest = ObjectKey("image/000000000001-1-0123456789abcdef/manifest")
    piece = ObjectKey("image/000000000001-1-0123456789abcdef/000000")
    async with power.session("a", tasks=False) as session:
        opened = session.volume
        write_file(session, b"x")
        await session.imager.make()
        power.store.objects[piece] = image_codec.encode_piece(piece, b"rows", opened.keyring)
        power.store.objects[manifest] = b"S3FSMETA\x00\x63" + bytes(100)
        stored_images = StoredImages(power.store, opened.keyring, opened.superblock.uuid)

        images = await stored_images.list_images()
        assert len(images) == 2
        assert await stored_images.garbage({one.key for one in images}, Txg(99), Txg(99)) == (
            [],
            [],
        )
        with pytest.raises(NewerFormatError):
            await stored_images.list_images([ManifestRef(manifest, "0" * 64)])


async def test_images_of_other_filesystems_are_not_garbage(power: Power) -> None:
    """Foreign manifests and pieces are kept, even if their names look like image names."""
    stranger = Keyring.from_master(bytes(range(32)))
    name = "image/000000000007-1-0123456789abcdef"
    pieces = [ObjectKey(f"{name}/{number:06d}") for number in range(3)]
    for piece in pieces:
        power.store.objects[piece] = image_codec.encode_piece(piece, b"rows", stranger)
    power.store.objects[ObjectKey("image/000000000006-1-0123456789abcdef/manifest")] = b"?"
    async with power.session("a", tasks=False) as session:
        opened = session.volume
        store = FaultyStore(power.store)
        stored_images = StoredImages(store, opened.keyring, opened.superblock.uuid)
        stay = {one.key for one in await stored_images.list_images()}
        store.calls.clear()

        assert await stored_images.garbage(stay, Txg(8)) == ([], [])
        assert len(store.calls) == 1, "one piece shows the owner of the image"


async def test_search_for_orphan_packs_uses_limited_memory(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search compares pack rows with the listing for one key prefix at a time."""
    assert list(orphan_packs.groups(10)) == [""]
    assert len(list(orphan_packs.groups(16 * RECLAIM_PACK_ROWS))) == 16
    assert list(orphan_packs.groups(10**9))[-1] == "ff"
    async with power.session("a", tasks=False) as session:
        write_file(session, b"x")
        await session.flush()
        [(_pack, known)] = packs.all_keys(session.db)
        keyring = session.volume.keyring
        made = [stray_pack(keyring, 0, bytes([n]) + bytes(15)) for n in range(0, 256, 5)]
        strays = [key for key, _ in made]
        power.store.objects.update(made)
        finder = OrphanPacks(session.db, power.store, keyring)
        for count in (1, 17, 10**9):
            monkeypatch.setattr(orphan_packs, "RECLAIM_PACK_ROWS", 1 / count)
            found = await finder.find(Epoch(5), 1000)
            assert [info.key for info in found] == strays
        assert known not in strays
        assert len(await finder.find(Epoch(5), 3)) == 3
        for key in strays:
            del power.store.objects[key]
        assert await finder.find(Epoch(5), 1000) == []
        # The object has the key of a pack, but its content is not a pack.
        power.store.objects[strays[1]] = b"?"
        power.store.objects.update(made[:1])
        # A second search does not read objects that were checked before.
        assert await finder.find(Epoch(5), 1000) == []
        assert len(await finder.find(Epoch(6), 1000)) == 1


@pytest.mark.parametrize(("at", "digit"), [(5, "0"), (5, "f"), (5, "x"), (0, "q"), (4, "x")])
async def test_object_of_a_row_with_a_damaged_key_is_not_an_orphan(
    power: Power, monkeypatch: pytest.MonkeyPatch, at: int, digit: str
) -> None:
    """The content of a row's pack must not be deleted because its key is damaged."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"x")
        await session.flush()
        [(_pack, known)] = packs.all_keys(session.db)
        damaged = known[:at] + ("8" if known[at] == digit else digit) + known[at + 1 :]
        session.db.begin_local()
        session.db.run("UPDATE packs SET object_key = ?", (damaged,))
        finder = OrphanPacks(session.db, power.store, session.volume.keyring)

        assert await finder.find(Epoch(5), 1000) == []
        with monkeypatch.context() as patched:  # Search in groups, as for many packs.
            patched.setattr(orphan_packs, "groups", lambda _count: list("0123456789abcdef"))
            assert await finder.find(Epoch(5), 1000) == []

        session.db.run("UPDATE packs SET object_key = CAST(? AS BLOB)", (known,))
        with pytest.raises(BadRowError):
            await finder.find(Epoch(5), 1000)
