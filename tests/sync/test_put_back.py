"""A bucket that is put back to an older copy under a running writer."""

from collections.abc import Mapping

import pytest
from typing_extensions import override

from s3fs_meta.codec.changelog import Kind, key_of
from s3fs_meta.errors import FencedError, OlderBucketError, StoreUnavailableError
from s3fs_meta.meta import damaged
from s3fs_meta.model import Ino, ObjectKey, Txg
from s3fs_meta.mount_state import MountState
from s3fs_meta.objects.contract import ETag
from s3fs_meta.sync import chain, mending
from s3fs_meta.sync.mending import Mend
from s3fs_meta.sync.opening import OpenOptions
from s3fs_meta.sync.session import Session
from s3fs_meta.testing.faulty_store import FaultyStore

from .conftest import Power, read_file, write_file

READ_ONLY = OpenOptions(read_only=True)


async def ship(session: Session, *numbers: int) -> dict[int, Ino]:
    """Write a file for each number, and ship it."""
    inos = {}
    for number in numbers:
        inos[number] = write_file(session, b"%d" % number * 5000)
        await session.flush()
    return inos


def put_back(power: Power, older: Mapping[ObjectKey, bytes]) -> None:
    """Make the bucket what it was."""
    power.store.objects.clear()
    power.store.objects.update(older)


async def require_all(power: Power, inos: Mapping[int, Ino], host: str = "c") -> None:
    """Let a host without local state read everything."""
    async with power.session(host, options=READ_ONLY, tasks=False) as session:
        for number, ino in inos.items():
            assert await read_file(session, ino) == b"%d" % number * 5000
        assert session.opened.notices == []


@pytest.mark.parametrize("end", ["a change", "nothing", "unmount", "fsync=remote"])
async def test_it_is_noticed_before_the_next_success_and_mended(power: Power, end: str) -> None:
    """The next txg is an image; packs that are gone are uploaded again from the cache."""
    async with power.session("a", tasks=end == "fsync=remote") as session:
        inos = await ship(session, 1, 2)
        older = dict(power.store.objects)
        inos |= await ship(session, 3, 4)
        before = session.shipper.link.txg
        put_back(power, older)
        if end == "a change":
            inos |= await ship(session, 5)
        elif end == "nothing":
            await session.flush()
        elif end == "unmount":
            await session.flush_at_end()
        else:
            await session.shipper.wait_until_shipped(50)

        for key, data in older.items():
            assert key == "lease" or power.store.objects[key] == data
        assert session.shipper.link.txg > before
        assert mending.wanted(session.db) is None
        await require_all(power, inos)
        await session.flush_at_end()
        await session.close()
    await require_all(power, inos, "d")
    async with power.session("a", tasks=False) as session:
        assert session.opened.notices == []


async def test_next_link_is_an_image_and_later_ones_are_not(power: Power) -> None:
    """Changes go on as always."""
    async with power.session("a", tasks=False) as session:
        await ship(session, 1)
        older = dict(power.store.objects)
        await ship(session, 2, 3)
        before = session.shipper.link.txg
        put_back(power, older)
        await session.flush()
        await ship(session, 4)
        uuid, kinds = session.opened.superblock.uuid, []
        for number in range(before + 1, session.shipper.link.txg + 1):
            own = await chain.fetch(power.store, session.opened.keyring, uuid, Txg(number))
            kinds.append(own.changelog.kind)
    assert kinds[0] is Kind.IMAGE
    assert set(kinds[1:]) == {Kind.GROUP}


async def test_copy_from_before_the_mount_has_an_older_lease(power: Power) -> None:
    """Nobody can have taken it since: ours is put there again."""
    async with power.session("a", tasks=False) as session:
        inos = await ship(session, 1)
        await session.close()
    older = dict(power.store.objects)
    async with power.session("a", tasks=False) as session:
        inos |= await ship(session, 2, 3)
        put_back(power, older)
        await session.flush()
        assert session.status.state is MountState.SERVING
        await require_all(power, inos)
        await session.flush_at_end()
        await session.close()
    async with power.session("a", tasks=False) as session:
        assert session.opened.notices == []


async def test_lease_of_another_host_is_not_taken(power: Power) -> None:
    """It was put back, and mounted elsewhere: this mount turns read-only and keeps everything."""
    older = dict(power.store.objects)
    async with power.session("a", tasks=False) as session:
        await session.close()
    async with power.session("a", tasks=False) as session:
        await ship(session, 1, 2)
        put_back(power, older)
        async with power.session("b", tasks=False) as other:
            await ship(other, 3)
        with pytest.raises(FencedError):
            await session.flush()
        assert session.status.state is MountState.FENCED


async def test_pack_that_is_not_cached_is_named_and_marked(
    power: Power, caplog: pytest.LogCaptureFixture
) -> None:
    """Its content is lost; nothing new is deduplicated onto it, and the rest is there."""
    async with power.session("a", tasks=False) as session:
        inos = await ship(session, 1)
        older = dict(power.store.objects)
        inos |= await ship(session, 2, 3)
        located = session.cache.located(inos[2], 0)  # type: ignore[arg-type]  # an index
        assert located is not None
        await session.durability.sync_all()
        session.db.begin_local()
        session.cache.drop_copy(located.block)
        session.db.commit()
        put_back(power, older)
        await session.flush()
        [mark] = [one for one in damaged.marks(session.db) if one.pack == located.pack]
        again = write_file(session, b"2" * 5000)
        await session.flush_at_end()
        await session.close()
    assert mark.pack_offset is None
    assert "is missing since the bucket was put back" in caplog.text
    async with power.session("c", options=READ_ONLY, tasks=False) as session:
        for ino in (inos[1], inos[3], inos[2], again):  # the one that was lost is healed by it
            assert len(await read_file(session, ino)) == 5000


class _NoImages(FaultyStore):
    """A store that refuses images for a while."""

    refuses = False

    @override
    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Store anything else."""
        if self.refuses and key.startswith("image/"):
            raise StoreUnavailableError(key, 1, 0.0, "away")
        return await super().create(key, data)


@pytest.mark.parametrize("killed", [False, True], ids=["goes on", "killed"])
async def test_mend_that_fails_is_no_success(power: Power, killed: bool) -> None:
    """The next flush tries it again; after a kill fsck -y does, a mount refuses to guess."""
    store = _NoImages(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        inos = await ship(session, 1)
        older = dict(power.store.objects)
        inos |= await ship(session, 2)
        put_back(power, older)
        store.refuses = True
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                await session.flush()
        store.refuses = False
        if not killed:
            await session.flush()
    if killed:
        with pytest.raises(OlderBucketError):
            async with power.session("a"):
                pass
        async with power.session("a", options=OpenOptions(mend=Mend()), tasks=False) as session:
            await session.publish_anew()
            await session.close()
    await require_all(power, inos)


async def test_at_most_one_request_more_a_txg(power: Power) -> None:
    """It is small."""
    faulty = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=faulty) as session:
        await ship(session, 1, 2)
        session.db.begin()
        session.db.counters.take_ino()
        session.db.commit()
        session.db.changed = True
        faulty.calls.clear()
        link = await session.shipper.ship()
        assert link is not None
        looks = [call for call in faulty.calls if key_of(Txg(link.txg - 1)) in str(call)]
        assert [call.method for call in looks] == ["get_range"]
