"""The level writer, which merges changelogs into level objects in the background."""

from s3fs_meta.codec import level as level_codec
from s3fs_meta.limits import LEVEL_FAN_OUT
from s3fs_meta.model import Txg
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.chain.empty_changelogs import append_empty_changelogs
from tests.sync.conftest import TAKEOVER, Power, read_file, write_file

RUN = LEVEL_FAN_OUT


def made(power: Power) -> list[tuple[int, Txg]]:
    """Return the level and the last txg of each level object in the bucket."""
    names = [level_codec.parse_key(key) for key in power.store.objects]
    return sorted(name for name in names if name is not None)


async def test_level_object_is_created_when_all_of_its_changelogs_are_shipped(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        await append_empty_changelogs(session, RUN - 2)  # Txg 1 is the fence record.
        await session.leveler.make_due()
        assert made(power) == []
        await append_empty_changelogs(session, RUN * RUN - RUN + 2)
        await session.leveler.make_due()
        assert made(power) == [*((1, n * RUN) for n in range(1, RUN + 1)), (2, RUN * RUN)]


async def test_next_mount_creates_missing_level_objects(power: Power) -> None:
    """A crash may leave complete runs of changelogs without level objects; a mount creates them."""
    async with power.session("a", tasks=False) as session:
        await append_empty_changelogs(session, 2 * RUN + 1)
        await session.leveler.make_due()
    del power.store.objects[level_codec.key_of(1, Txg(RUN))]
    before = dict(power.store.objects)
    store = FaultyStore(power.store)
    async with power.session("b", tasks=False, options=TAKEOVER, store=store) as session:
        await session.leveler.make_due()
    assert made(power) == [(1, RUN), (1, 2 * RUN)]
    assert before.items() - power.store.objects.items() <= {
        item for item in before.items() if item[0] == "lease"
    }
    created = [call.key for call in store.calls if call.method == "create"]
    assert [key for key in created if key.startswith("level/")] == [level_codec.key_of(1, Txg(RUN))]


async def test_no_level_object_is_created_for_txgs_that_contain_an_image(power: Power) -> None:
    """Changelogs that announce an image contain no changes, so they are not merged."""
    async with power.session("a", tasks=False) as session:
        await append_empty_changelogs(session, 2)
    async with power.session("b", tasks=False, options=TAKEOVER) as session:
        ino = write_file(session, b"x")
        await session.publish_as_txg()
        await append_empty_changelogs(session, 2 * RUN)
        session.leveler.done = Txg(0)
        await session.leveler.make_due()
        assert made(power) == [(1, 2 * RUN), (1, 3 * RUN)]
    async with power.session("c", options=TAKEOVER) as session:
        assert await read_file(session, ino) == b"x"


async def test_merge_of_changelogs_is_retried_after_an_outage(power: Power) -> None:
    """If the upload of a level object fails, the level writer uploads it later."""
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        await append_empty_changelogs(session, 4 * RUN - 1)
        store.fail("create")
        try:
            await session.leveler.make_due()
        except Exception:  # noqa: BLE001 - any error of the unavailable store
            assert made(power) == []
        await session.leveler.make_due()
        assert made(power) == [(1, n * RUN) for n in range(1, 5)]
