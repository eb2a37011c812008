"""Deletion in two phases."""

import itertools

import trio

from s3fs_meta.limits import LOOP_SLICE_ROWS
from s3fs_meta.meta import packs
from s3fs_meta.model import ObjectKey

from .conftest import Power, remove_file, write_file

CONTENT = b"hello" * 1000


async def test_dead_pack_goes_after_two_more_images(power: Power) -> None:
    """A pack that one of the last two images names is never deleted."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        await session.flush()
        [(_pack, key)] = packs.all_keys(session.db)
        remove_file(session, ino)

        await session.flush()
        assert key in power.store.objects  # the image before still names it
        write_file(session, b"other")
        await session.flush()
        assert key not in power.store.objects
        await session.close()


async def test_only_two_images_are_kept(power: Power) -> None:
    """Older manifests go, and pieces that the kept ones do not use."""
    async with power.session("a") as session:
        for number in range(5):
            write_file(session, b"%d" % number)
            await session.flush()
        await session.close()

    manifests = [key for key in power.store.objects if key.endswith("/manifest")]
    assert len(manifests) == 2


async def test_many_dead_packs_let_others_have_their_turn(power: Power) -> None:
    """Rows change in slices, when packs are condemned and when they are forgotten."""
    async with power.session("a", tasks=False) as session:
        session.db.begin()
        for number in range(5 * LOOP_SLICE_ROWS):
            pack = packs.create(session.db, ObjectKey(f"pack/00/1-{number:032x}"), 1000)
            packs.stored(session.db, pack)
            packs.note_if_dead(session.db, pack)
        session.db.commit()
        await session.flush()
        seen: set[tuple[int, int]] = set()

        async def watch() -> None:
            while True:
                known = packs.condemned(session.db), list(packs.all_keys(session.db))
                seen.add((len(known[0]), len(known[1])))
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            write_file(session, CONTENT)
            await session.flush()
            nursery.cancel_scope.cancel()

        for counts in ({one for one, _ in seen}, {one for _, one in seen}):
            steps = sorted(counts)
            assert len(steps) > 2
            assert max(b - a for a, b in itertools.pairwise(steps)) <= 2 * LOOP_SLICE_ROWS
        assert len(list(packs.all_keys(session.db))) == 1
