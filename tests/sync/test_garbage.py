"""Finding what nobody needs; what becomes of it is in test_reclaim."""

import pytest

from s3fs_meta.limits import RECLAIM_PACK_ROWS
from s3fs_meta.meta import packs
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.sync import garbage
from s3fs_meta.sync.garbage import Finder, Shelf

from .conftest import Power, write_file


async def test_shelf_has_what_can_be_restored(power: Power) -> None:
    """An image that is damaged or lacks a piece is none; one without its own changelog is."""
    async with power.session("a", tasks=False) as session:
        for number in range(4):
            write_file(session, b"%d" % number)
            await session.imager.make()
        opened = session.opened
        shelf = Shelf(power.store, opened.keyring, opened.superblock.uuid)
        images = await shelf.look()
        assert len(images) == 5
        assert all(shelf.stored_bytes(one) > 0 for one in images)

        objects = power.store.objects
        objects[images[1].key] = objects[images[1].key][:-1]
        del objects[ObjectKey(images[2].key.replace("manifest", "000000"))]
        del objects[ObjectKey(f"changelog/{images[3].txg:012d}")]
        again = Shelf(power.store, opened.keyring, opened.superblock.uuid)
        only = images[3]._replace(is_txg=True)  # no changes lead over it any more
        assert await again.look() == [images[0], only, images[4]]

        gone, pieces = again.garbage({images[at].key for at in (0, 3, 4)}, images[4].txg)
        assert {info.key for info in gone} == {images[at].key for at in (1, 2)}
        assert {info.key.split("/")[1] for info in pieces} == {images[1].key.split("/")[1]}


async def test_pieces_on_their_way_are_no_garbage(power: Power) -> None:
    """Those of a txg that is not before the last images may get a manifest yet."""
    piece = ObjectKey("image/000000000007-1-0123456789abcdef/000000")
    power.store.objects[piece] = b"?"
    async with power.session("a", tasks=False) as session:
        opened = session.opened
        shelf = Shelf(power.store, opened.keyring, opened.superblock.uuid)
        images = await shelf.look()
        stay = {one.key for one in images}
        assert shelf.garbage(stay, Txg(7)) == ([], [])
        assert [info.key for info in shelf.garbage(stay, Txg(8))[1]] == [piece]


async def test_orphans_are_found_in_bounded_memory(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and listing are compared a part of the names at a time."""
    assert list(garbage._groups(10)) == [""]
    assert len(list(garbage._groups(16 * RECLAIM_PACK_ROWS))) == 16
    assert list(garbage._groups(10**9))[-1] == "ff"
    async with power.session("a", tasks=False) as session:
        write_file(session, b"x")
        await session.flush()
        [(_pack, known)] = packs.all_keys(session.db)
        strays = [ObjectKey(f"pack/{n:02x}/0-{n:02x}{'0' * 30}") for n in range(0, 256, 5)]
        for key in strays:
            power.store.objects[key] = b"?"
        finder = Finder(
            session.db, power.store, session.opened.keyring, session.opened.superblock.uuid
        )
        for count in (1, 17, 10**9):
            monkeypatch.setattr(garbage, "RECLAIM_PACK_ROWS", 1 / count)
            found = await finder._orphans(Epoch(5), 1000)
            assert [info.key for info in found] == strays
        assert known not in strays
        assert len(await finder._orphans(Epoch(5), 3)) == 3
        for key in strays:
            del power.store.objects[key]
        assert await finder._orphans(Epoch(5), 1000) == []
        power.store.objects[strays[0]] = b"?"
        assert await finder._orphans(Epoch(5), 1000) == []  # looked at already
        assert len(await finder._orphans(Epoch(6), 1000)) == 1
