"""Changelogs that one host ships and another host applies."""

import itertools
import secrets

import pytest
import trio
from typing_extensions import override

from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.changelog import Kind
from s3fs_meta.codec.image import content_hash
from s3fs_meta.errors import FencedError, HeldError, StoreUnavailableError
from s3fs_meta.limits import IMAGE_CUTS_MAX, MIB
from s3fs_meta.meta.tables import block_map, inodes, local_state, pending
from s3fs_meta.model import BlockIndex, Ino, ObjectKey, Txg
from s3fs_meta.mount_state import MountState
from s3fs_meta.objects.contract import ETag
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.upload.bounds import UploadBounds
from s3fs_meta.testing.faulty_store import FaultyStore, StoreGate
from tests.polling import WAIT_S_MAX
from tests.rows import SETTLED, contents
from tests.sync.chain.stored_changelogs import changelogs
from tests.sync.conftest import (
    TAKEOVER,
    Power,
    failing_append,
    read_file,
    remove_file,
    unmount,
    write_file,
)

pytestmark = pytest.mark.thorough


async def test_loss_of_a_host_loses_only_unshipped_changes(power: Power) -> None:
    """Another host restores the first image and applies all changelogs after this image."""
    async with power.session("a", tasks=False) as session:
        kept = [write_file(session, b"%d" % number * 3000) for number in range(20)]
        await session.flush()
        remove_file(session, kept.pop())
        kept.append(write_file(session, b"later" * 1000))
        await session.flush()
        shipped = contents(session.db.connection, SETTLED)
        lost = write_file(session, b"never shipped")

    async with power.session("b", options=TAKEOVER) as session:
        assert contents(session.db.connection, SETTLED) == shipped
        assert inodes.find(session.db, lost) is None
        for ino in kept:
            assert len(await read_file(session, ino)) == inodes.get(session.db, ino).size_bytes


async def test_chain_has_no_gap_between_two_epochs(power: Power) -> None:
    """The first changelog of each epoch is a fence record that continues the chain."""
    for host in "aba":
        async with power.session(host) as session:
            write_file(session, host.encode())
            await unmount(session)

    async with power.session("c") as session:
        chain = changelogs(power, session.volume.keyring)
    assert [one.txg for one in chain] == list(range(1, len(chain) + 1))
    assert [one.kind for one in chain if one.kind is Kind.FENCE] == [Kind.FENCE] * 4
    assert chain[0].kind is Kind.FENCE
    epochs = [one.epoch for one in chain]
    assert epochs == sorted(epochs)
    for before, after in itertools.pairwise(chain):
        data = power.store.objects[changelog_codec.key_of(before.txg)]
        assert after.previous == content_hash(data)


async def test_zero_and_duplicate_blocks_found_after_the_snapshot_reach_other_hosts(
    power: Power,
) -> None:
    """A block may turn out to be zeros or a duplicate only after the snapshot."""
    async with power.session("a", tasks=False) as session:
        zeros = [write_file(session, bytes(9000)) for _ in range(3)]
        doubles = [write_file(session, b"same" * 2000) for _ in range(3)]
        await session.flush()
        assert all(block_map.find(session.db, ino, BlockIndex(0)) is None for ino in zeros)
        at_first = changelogs(power, session.volume.keyring)[-1].txg
        more = write_file(session, b"same" * 2000)
        # ship() also ships the placements of blocks that were uploaded after the first snapshot.
        await session.shipper.ship(anyway=True)
        await session.shipper.ship(anyway=True)
        assert pending.is_empty(session.db)
        expected = contents(session.db.connection, SETTLED)

    async with power.session("b", options=TAKEOVER) as session:
        assert contents(session.db.connection, SETTLED) == expected
        for ino in zeros:
            assert await read_file(session, ino) == bytes(9000)
        for ino in [*doubles, more]:
            assert await read_file(session, ino) == b"same" * 2000
    assert at_first == Txg(2)


async def test_changes_after_a_txg_published_as_an_image_are_shipped(power: Power) -> None:
    """An upload finds duplicate blocks while fsck -y publishes an image as the next txg."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"same" * 2000)
        await session.flush()
        double, zeros = write_file(session, b"same" * 2000), write_file(session, bytes(9000))
        write_file(session, b"fresh" * 2000)

        await session.publish_as_txg()

        assert pending.is_empty(session.db)
        remove_file(session, double)
        await session.flush()
        expected = contents(session.db.connection, SETTLED)
    async with power.session("b", options=TAKEOVER) as session:
        assert session.volume.notices == ()
        assert contents(session.db.connection, SETTLED) == expected
        assert await read_file(session, zeros) == bytes(9000)


async def _require_bounded_wal(session: Session) -> None:
    """Write and checkpoint 60 MiB of rows; the WAL must restart in between."""
    for _ in range(6):
        session.db.begin_local()
        local_state.put(session.db, "filler", secrets.token_hex(5 * MIB))
        session.db.commit()
        await trio.to_thread.run_sync(session.db.checkpoint)
    assert session.db.wal_bytes < 40 * MIB


async def test_wal_size_is_limited_while_an_upload_waits_for_the_store(power: Power) -> None:
    """During an outage no snapshot stays open, so the WAL can restart."""
    faulty = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=faulty) as session:
        ino = write_file(session, b"waits")
        gate = faulty.hold("create")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.flush)
            await gate.wait_started()
            await _require_bounded_wal(session)
            gate.open()
        expected = contents(session.db.connection, SETTLED)
    async with power.session("b", options=TAKEOVER) as session:
        assert contents(session.db.connection, SETTLED) == expected
        assert await read_file(session, ino) == b"waits"


async def test_wal_size_is_limited_while_an_image_waits_for_the_store(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image uploads blocks before it opens a snapshot, so an outage delays only the snapshot."""
    faulty = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=faulty) as session:
        ino = write_file(session, b"waits")
        gate = faulty.hold("create")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.make_image)
            await gate.wait_started()
            with monkeypatch.context() as patch:
                # The waiting image has not yet reserved disk space for a copy of the database.
                patch.setattr(session.cache.disk, "spare_bytes", lambda: 0)
                assert session.cache.disk.unheld_bytes() == 0
            await _require_bounded_wal(session)
            gate.open()
    async with power.session("b", options=TAKEOVER) as session:
        assert await read_file(session, ino) == b"waits"


async def test_image_is_abandoned_if_the_wal_grows_too_large(power: Power) -> None:
    """If an image is abandoned, the next txg ships the locations of the blocks uploaded for it."""
    bounds = UploadBounds(image_wal_bytes=1 * MIB)
    faulty, gates, away = FaultyStore(power.store), list[StoreGate](), trio.Event()

    def go_away(step: str) -> None:
        if step == "txg confirmed" and not gates:
            gates.append(faulty.hold("create"))
            write_file(session, b"late" * 1000)
            away.set()

    async with power.session(
        "a", tasks=False, store=faulty, hook=go_away, bounds=bounds
    ) as session:
        write_file(session, b"early")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect_abandoned, session)
            await away.wait()
            await gates[0].wait_started()
            for _ in range(200):
                write_file(session, b"more")
                session.db.commit()
        gates[0].open()
        await session.make_image()
        expected = contents(session.db.connection, SETTLED)
    async with power.session("b", options=TAKEOVER) as session:
        assert contents(session.db.connection, SETTLED) == expected


async def _expect_abandoned(session: Session) -> None:
    with pytest.raises(StoreUnavailableError, match="the WAL grew"):
        await session.make_image()


async def test_host_that_mounts_again_applies_only_new_changelogs(power: Power) -> None:
    """After a clean unmount, a host keeps its local state and applies only later changelogs."""
    async with power.session("a") as session:
        ino = write_file(session, b"from a")
        await unmount(session)
    async with power.session("b") as session:
        other = write_file(session, b"from b")
        await unmount(session)
    async with power.session("a") as session:
        assert await read_file(session, ino) == b"from a"
        assert session.cache.misses == 0  # The cache contains all blocks of the file.
        assert await read_file(session, other) == b"from b"
        assert not session.volume.notices
        assert not list(session.volume.state_dir.path.glob("kept-*"))


async def test_unshipped_changes_of_a_crashed_mount_are_shipped_by_the_next_mount(
    power: Power,
) -> None:
    """The next mount's first changelog contains changes that were recorded but not shipped."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"recorded")
        session.db.commit()
        assert session.volume.recorder.bytes > 0

    async with power.session("a", tasks=False) as session:
        assert pending.has_news(session.db)
        assert await session.flush() is not None
    async with power.session("b", options=TAKEOVER) as session:
        assert await read_file(session, ino) == b"recorded"


@pytest.mark.parametrize("ends", ["killed", "closed"])
async def test_failed_upload_of_a_changelog_is_retried_with_the_same_bytes(
    power: Power, ends: str
) -> None:
    """The host keeps the lease until the next mount has sent the bytes of the first attempt."""
    faulty = FaultyStore(power.store)
    async with power.session(
        "a", tasks=False, store=faulty, hook=failing_append(faulty)
    ) as session:
        ino = write_file(session, b"first")
        with pytest.raises(StoreUnavailableError):
            await session.flush()
        attempted = pending.outbox(session.db)
        assert attempted is not None
        if ends == "closed":
            await session.close()

    with pytest.raises(HeldError):
        async with power.session("b", tasks=False):
            pass
    async with power.session("a", tasks=False) as session:
        assert power.store.objects[changelog_codec.key_of(attempted[0])] == attempted[1]
        later = write_file(session, b"second")
        await unmount(session)
    async with power.session("b", tasks=False) as session:
        assert await read_file(session, ino) == b"first"
        assert await read_file(session, later) == b"second"


async def test_paused_writer_is_fenced_when_it_resumes_after_a_takeover(power: Power) -> None:
    """A mount turns read-only when another host has used the number of its next changelog."""
    async with power.session("a", tasks=False) as old:
        write_file(old, b"before")
        await old.flush()
        lost = write_file(old, b"while paused")
        async with power.session("b", options=TAKEOVER) as new:
            mine = write_file(new, b"new epoch")
            await new.flush()
            await new.close()
        for _ in range(2):
            with pytest.raises(FencedError):
                await old.flush()
        assert old.status.state is MountState.FENCED
        assert not old.status.writable
        assert await read_file(old, lost) == b"while paused"

    async with power.session("c") as session:
        assert await read_file(session, mine) == b"new epoch"
        assert await read_file(session, Ino(max(mine, lost))) == b"new epoch"


async def test_changes_are_shipped_after_the_sync_interval(power: Power) -> None:
    """Changes are shipped after sync_interval without a flush."""
    shipped = trio.Event()

    def hook(step: str) -> None:
        if step == "txg confirmed":
            shipped.set()

    options = SessionOptions(sync_interval_s=0.01)
    async with power.session("a", session_options=options, hook=hook) as session:
        ino = write_file(session, b"soon")
        assert session.shipper.oldest_ns == 0  # A change has no change record before its commit.
        session.db.commit()
        assert session.shipper.oldest_ns > 0
        with trio.fail_after(WAIT_S_MAX):
            await shipped.wait()
        assert session.shipper.oldest_ns == 0
    async with power.session("b", options=TAKEOVER) as session:
        assert await read_file(session, ino) == b"soon"


async def test_huge_txg_is_split_into_parts(power: Power) -> None:
    """If the changes of a txg are too large for one object, they are stored in several parts."""
    bounds = UploadBounds(run_bytes=2000, locations=7)
    async with power.session("a", tasks=False, bounds=bounds) as session:
        expected = {}
        for number in range(40):
            content = b"%d" % number * 100
            expected[write_file(session, content)] = content
            session.db.commit()
        await session.flush()
        [last] = changelogs(power, session.volume.keyring)[1:]
        assert len(last.parts) > 5
    async with power.session("b", options=TAKEOVER) as session:
        for ino, content in expected.items():
            assert await read_file(session, ino) == content


class _GrowingWal(FaultyStore):
    """A store that fills the WAL with changes during each upload of a pack."""

    session: Session | None = None  # The session whose WAL grows.

    @override
    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Create an object; before a pack, commit two megabytes of changes."""
        if self.session is not None and key.startswith("pack/"):
            for _ in range(2):
                self.session.db.begin()
                local_state.put(self.session.db, "filler", secrets.token_hex(MIB // 2))
                write_file(self.session, secrets.token_bytes(100))
                self.session.db.commit()
            await trio.lowlevel.checkpoint()
        return await super().create(key, data)

    def grow(self, session: Session | None) -> None:
        """Let the WAL of a session grow from now on; None stops the growth."""
        self.session = session


async def test_image_that_must_be_the_next_txg_is_postponed_after_a_limited_number_of_cuts(
    power: Power,
) -> None:
    """A postponed image is completed by the next attempt, and no change is lost."""
    store, cuts = _GrowingWal(power.store), list[str]()

    def hook(step: str) -> None:
        if step == "txg cut":
            cuts.append(step)
            assert len(cuts) < 5 * IMAGE_CUTS_MAX, "the cuts do not end"

    bounds = UploadBounds(image_wal_bytes=MIB)
    async with power.session("a", tasks=False, store=store, hook=hook, bounds=bounds) as session:
        ino = write_file(session, b"first")
        store.grow(session)
        with pytest.raises(
            StoreUnavailableError, match=f"after {IMAGE_CUTS_MAX} attempts .*the WAL grew by 1 MiB"
        ):
            await session.imager.publish_as_txg()
        assert len(cuts) == IMAGE_CUTS_MAX
        assert session.db.changed

        store.grow(None)
        await session.imager.publish_as_txg()
        expected = contents(session.db.connection, SETTLED)
    async with power.session("b", options=TAKEOVER) as session:
        assert contents(session.db.connection, SETTLED) == expected
        assert await read_file(session, ino) == b"first"


async def test_failed_append_of_an_image_is_retried_without_a_further_txg(power: Power) -> None:
    """The txg of an image is fixed by the first attempt, so a retry adds no changes."""
    faulty = FaultyStore(power.store)
    async with power.session(
        "a", tasks=False, store=faulty, hook=failing_append(faulty)
    ) as session:
        write_file(session, b"first")
        with pytest.raises(StoreUnavailableError):
            await session.imager.publish_as_txg()
        attempted = pending.outbox(session.db)
        assert attempted is not None
        assert session.shipper.oldest_ns > 0

        link = await session.shipper.ship()
        assert link is not None
        assert link.txg == session.link.txg == attempted[0]
        assert await session.shipper.ship() is None
