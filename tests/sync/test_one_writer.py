"""Two concurrent writers cause no damage, even with wrong clocks or slow requests."""

import shutil
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
import trio

from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.changelog import Kind
from s3fs_meta.errors import FencedError
from s3fs_meta.meta.tables import inodes, packs, pending
from s3fs_meta.model import Ino
from s3fs_meta.mount_state import MountState
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.polling import WAIT_S_MAX
from tests.sync.chain.stored_changelogs import changelogs
from tests.sync.conftest import TAKEOVER, HandClock, Power, read_file, remove_file, write_file
from tests.tasks import held

pytestmark = pytest.mark.thorough

DAY_NS = 24 * 3600 * 1_000_000_000


@pytest.mark.parametrize("shift_ns", [-DAY_NS, DAY_NS])
async def test_takeover_succeeds_if_clocks_differ_by_a_day(power: Power, shift_ns: int) -> None:
    """If clocks differ by a day, the epoch still decides which writer is fenced."""
    now_ns = 1_790_000_000_000_000_000
    async with power.session("a", tasks=False, clock=HandClock(now_ns)) as old:
        write_file(old, b"by a")
        await old.flush()
        shifted = HandClock(now_ns + shift_ns)
        async with power.session("b", options=TAKEOVER, tasks=False, clock=shifted) as new:
            ino = write_file(new, b"by b")
            await new.flush()
            write_file(old, b"too late")
            with pytest.raises(FencedError):
                await old.flush()
            keyring = new.volume.keyring
            await new.close()

    times = [one.created_ns for one in changelogs(power, keyring)]
    assert times == sorted(set(times))
    async with power.session("c") as session:
        assert await read_file(session, ino) == b"by b"


async def test_changelog_that_is_appended_after_a_takeover_is_refused(power: Power) -> None:
    """The store refuses the late changelog, because the fence record occupies its key."""
    slow = FaultyStore(power.store)
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(power.session("a", tasks=False, store=slow))
        write_file(old, b"first")
        await old.flush()
        lost = write_file(old, b"late")
        await old.uploader.sealer.seal_most()
        gate = slow.hold("create")  # The store delays this upload of a pack.
        async with (
            held(gate, old.flush, FencedError),
            power.session("b", options=TAKEOVER, tasks=False) as new,
        ):
            ino = write_file(new, b"by b")
            await new.flush()
            await new.close()
        assert old.status.state is MountState.FENCED
        assert await read_file(old, lost) == b"late"
    async with power.session("c", tasks=False) as session:
        assert await read_file(session, ino) == b"by b"
        # The inodes are the root directory, "first" and "by b".
        assert session.db.counters.inodes == 3


async def test_changelog_appended_before_the_fence_record_is_unconfirmed(power: Power) -> None:
    """A changelog that was appended just before the fence record is unconfirmed for its writer."""
    taken: list[Ino] = []

    async with power.session("a", tasks=False) as old:
        ino = write_file(old, b"just in time")
        async with AsyncExitStack() as stack:
            power_store = power.store
            entered: list[str] = []
            create = power_store.create

            async def create_then_lose(key, data):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
                etag = await create(key, data)
                if changelog_codec.parse_key(key) is not None and not entered:
                    entered.append(key)
                    new = await stack.enter_async_context(
                        power.session("b", options=TAKEOVER, tasks=False)
                    )
                    taken.append(write_file(new, b"by b"))
                    assert await read_file(new, ino) == b"just in time"
                    await new.flush()
                    await new.close()
                return etag

            power_store.create = create_then_lose  # type: ignore[method-assign]
            with pytest.raises(FencedError):
                await old.flush()
            power_store.create = create  # type: ignore[method-assign]
        # The writer does not know that the changelog is in the chain.
        assert pending.outbox(old.db) is not None

    async with power.session("a", tasks=False) as again:
        # The unconfirmed changelog is in the chain, so the host has lost no change.
        assert again.volume.notices == ()
        assert await read_file(again, ino) == b"just in time"
        assert await read_file(again, taken[0]) == b"by b"


async def test_power_loss_after_shipping_loses_no_shipped_change(
    power: Power, tmp_path: Path
) -> None:
    """If a power loss undoes shipped changes on this host, the next mount restores them.

    The block file of the unshipped change has no row in the older database, so the mount
    quarantines it.
    """
    state = power.home / "a"
    saved = tmp_path / "saved"

    def save(step: str) -> None:
        if step == "txg attempted":
            saved.mkdir()
            for path in state.glob("meta.db*"):
                shutil.copy(path, saved)

    async with power.session("a", tasks=False, hook=save) as session:
        ino = write_file(session, b"shipped")
        await session.flush()
        after = write_file(session, b"not shipped")
        session.db.commit()
    for path in state.glob("meta.db*"):
        path.unlink()
    for path in saved.iterdir():
        shutil.copy(path, state)

    async with power.session("a", tasks=False) as session:
        assert await read_file(session, ino) == b"shipped"
        assert inodes.find(session.db, after) is None
        [notice] = session.volume.notices
        assert "quarantined" in notice
        [kept] = (path for path in state.glob("kept-*/blocks/**/*") if path.is_file())
        assert kept.read_bytes() == b"not shipped"
        more = write_file(session, b"more")
        await session.flush()
    async with power.session("b", options=TAKEOVER, tasks=False) as session:
        assert await read_file(session, ino) == b"shipped"
        assert await read_file(session, more) == b"more"


async def test_fence_record_follows_a_changelog_that_was_appended_late(power: Power) -> None:
    """The old writer appends a changelog after the new host has read the chain."""
    async with power.session("a", tasks=False) as old:
        ino = write_file(old, b"at the last moment")
        create = power.store.create
        raced: list[str] = []

        async def race(key, data):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            if changelog_codec.parse_key(key) is not None and not raced:
                raced.append(key)
                with pytest.raises(FencedError):
                    await old.flush()
            return await create(key, data)

        power.store.create = race  # type: ignore[method-assign]
        async with power.session("b", options=TAKEOVER, tasks=False) as new:
            power.store.create = create  # type: ignore[method-assign]
            assert raced
            assert await read_file(new, ino) == b"at the last moment"
            last = [
                changelog_codec.decode(key, data, new.volume.keyring).kind
                for key, data in sorted(power.store.objects.items())
                if changelog_codec.parse_key(key) is not None
            ]
            assert last[-2:] == [Kind.GROUP, Kind.FENCE]


async def test_late_deletion_by_a_fenced_writer_deletes_no_needed_object(power: Power) -> None:
    """A fenced writer deletes only objects that the new writer's state does not need."""
    await power.retain(0)
    slow = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=slow) as old:
        doomed = [write_file(old, b"doomed %d" % number * 900) for number in range(3)]
        await old.flush()
        kept = write_file(old, b"kept" * 900)
        await old.make_image()
        for ino in doomed:
            remove_file(old, ino)
        for _ in range(3):
            write_file(old, b"more" * 900)
            await old.make_image()
        gate = slow.hold("delete")

        async def reclaim() -> None:
            with suppress(FencedError):
                await old.make_image()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reclaim)
            with trio.fail_after(WAIT_S_MAX):
                await gate.wait_started()
            async with power.session("b", options=TAKEOVER, tasks=False) as new:
                # The new content equals content of a pack whose deletion is under way.
                again = write_file(new, b"doomed 1" * 900)
                await new.flush()
                await new.close()
            before = set(power.store.objects)
            gate.open()
    assert before > set(power.store.objects)
    async with power.session("c", tasks=False) as session:
        for pack, key in packs.all_keys(session.db):
            row = packs.get(session.db, pack)
            assert row.live_bytes == 0 or key in power.store.objects
        assert await read_file(session, again) == b"doomed 1" * 900
        assert await read_file(session, kept) == b"kept" * 900
