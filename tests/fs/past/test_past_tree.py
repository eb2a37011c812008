"""Tests of the tree of past points in time without a kernel: inode numbers, content, limits."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from s3fs_meta.errors import NameTooLongError, NoInodeError, PastUnavailableError
from s3fs_meta.fs.past.open_points import OpenPoints
from s3fs_meta.fs.past.past_tree import PAST_TOP_INO, PastTree
from s3fs_meta.limits import (
    MIB,
    PAST_DOWNLOADS_MAX,
    PAST_INO_BITS,
    PAST_INO_MIN,
    PAST_NAME_KEPT_S,
)
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import ROOT_INO, Attributes, Cookie, Ino, Txg
from s3fs_meta.objects.billing import Meter, MeteredStore, RequestClass
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.uncached_reads import Content, UncachedReader
from tests.fs.past.nowhere import nowhere
from tests.sync.conftest import Power, write_file


def tree_of(session: Session, home: Path, **bounds: int) -> PastTree:
    """Return the tree of past points in time in a session's filesystem."""
    points = OpenPoints(
        session.volume,
        session.cache.disk,
        lambda txg: StateDir(home / f"snapshot {txg}"),
        nowhere,
    )
    return PastTree(
        points,
        b".snapshots",
        MIB,
        lambda: inodes.get(session.db, ROOT_INO),
        session.volume.clock.now_ns,
        **bounds,
    )


async def named(session: Session, name: bytes, content: bytes) -> Txg:
    """Upload a new file with this name; return the txg."""
    dentries.add(session.db, ROOT_INO, name, write_file(session, content))
    await session.shipper.ship(anyway=True)
    return session.link.txg


async def found(tree: PastTree, parent: Ino, name: bytes) -> Attributes:
    """Return the attributes of the inode with this name, which must exist."""
    attributes = await tree.lookup(parent, name)
    assert attributes is not None
    return attributes


async def test_repeated_lookup_in_a_past_tree_returns_the_same_inode_number(
    plain: Power, tmp_path: Path
) -> None:
    async with plain.session(tasks=False) as session:
        first = await named(session, b"f", b"first")
        second = await named(session, b"g", b"second")
        tree = tree_of(session, tmp_path)
        roots = [await found(tree, PAST_TOP_INO, b"txg=%d" % txg) for txg in (second, first)]
        files = [await found(tree, root.ino, b"f") for root in roots]
        again = await found(tree, PAST_TOP_INO, b"txg=%d" % second)

        assert [root.ino - PAST_INO_MIN for root in roots] == [
            (1 << PAST_INO_BITS) + 1,
            (2 << PAST_INO_BITS) + 1,
        ]
        assert again.ino == roots[0].ino
        assert [one.parent for one in files] == [root.ino for root in roots]
        assert (await found(tree, files[0].parent, b"..")).ino == PAST_TOP_INO
        assert (await found(tree, files[0].parent, b".")).ino == files[0].parent
        for wrong in (PAST_INO_MIN + (3 << PAST_INO_BITS) + 1, (1 << 63) - 1, PAST_INO_MIN + 1):
            with pytest.raises(NoInodeError):
                await tree.getattr(Ino(wrong))
        with pytest.raises(NoInodeError):
            await tree.getattr(Ino(roots[0].ino + 500))


async def test_name_of_more_than_255_bytes_is_refused_in_a_past_tree(
    plain: Power, tmp_path: Path
) -> None:
    async with plain.session(tasks=False) as session:
        txg = await named(session, b"f", b"x")
        tree = tree_of(session, tmp_path)
        root = await found(tree, PAST_TOP_INO, b"txg=%d" % txg)
        for parent in (PAST_TOP_INO, root.ino):
            with pytest.raises(NameTooLongError):
                await tree.lookup(parent, b"n" * 256)


async def test_inode_number_too_large_for_a_past_tree_is_refused(
    plain: Power, tmp_path: Path
) -> None:
    async with plain.session(tasks=False) as session:
        session.db.begin()
        session.db.counters.next_ino = Ino(1 << PAST_INO_BITS)
        txg = await named(session, b"f", b"x")
        tree = tree_of(session, tmp_path)
        root = await found(tree, PAST_TOP_INO, b"txg=%d" % txg)
        with pytest.raises(PastUnavailableError, match=r"is too large for \.snapshots"):
            await tree.lookup(root.ino, b"f")


async def test_relative_time_refers_to_one_txg_while_it_is_in_use(
    plain: Power, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A name such as 0s-ago keeps its txg while it is in use, so that a copy is consistent."""
    async with plain.session(tasks=False) as session:
        first = await named(session, b"f", b"first")
        tree = tree_of(session, tmp_path, names_max=1)
        root = await found(tree, PAST_TOP_INO, b"0s-ago")
        second = await named(session, b"g", b"second")
        for _ in range(3):
            await trio.sleep(PAST_NAME_KEPT_S / 2)
            assert (await found(tree, PAST_TOP_INO, b"0s-ago")).ino == root.ino
            await found(tree, root.ino, b"f")
        await trio.sleep(PAST_NAME_KEPT_S)
        later = await found(tree, PAST_TOP_INO, b"0s-ago")
        await found(tree, PAST_TOP_INO, b"txg=%d" % first)
        third = await named(session, b"h", b"third")
        forgotten = await found(tree, PAST_TOP_INO, b"0s-ago")

        for point, txg in ((root, first), (later, second), (forgotten, third)):
            assert point.ino == (await found(tree, PAST_TOP_INO, b"txg=%d" % txg)).ino


async def test_concurrent_reads_of_a_past_block_download_it_once(
    plain: Power, tmp_path: Path
) -> None:
    meter = Meter()
    store = MeteredStore(plain.store, meter)
    async with plain.session(tasks=False, store=store) as session:
        txg = await named(session, b"f", bytes(range(256)) * 2000)
        tree = tree_of(session, tmp_path)
        root = await found(tree, PAST_TOP_INO, b"txg=%d" % txg)
        ino = (await found(tree, root.ino, b"f")).ino
        meter.take()
        results: dict[int, bytes] = {}

        async def read(offset: int) -> None:
            results[offset] = await tree.read(ino, offset, 4096)

        async with trio.open_nursery() as nursery:
            for offset in range(0, 512_000, 4096):
                nursery.start_soon(read, offset)
        sent = [counts for one in meter.take().values() for counts in one.items()]

    whole = b"".join(results[offset] for offset in sorted(results))
    assert whole == bytes(range(256)) * 2000
    assert sum(b.requests for (_, kind), b in sent if kind == RequestClass.GET.value) == 1


async def test_memory_used_for_past_content_is_bounded(plain: Power, tmp_path: Path) -> None:
    async with plain.session(tasks=False) as session:
        txgs = [await named(session, b"%d" % number, b"%d" % number * 900) for number in range(5)]
        tree = tree_of(session, tmp_path, cached_bytes_max=2000)
        root = await found(tree, PAST_TOP_INO, b"txg=%d" % txgs[-1])
        for _ in range(2):
            for number in range(5):
                ino = (await found(tree, root.ino, b"%d" % number)).ino
                assert await tree.read(ino, 0, 5000) == b"%d" % number * 900
                assert tree.cached_bytes <= 2000


async def test_snapshots_directory_lists_the_open_points_in_time(
    plain: Power, tmp_path: Path
) -> None:
    async with plain.session(tasks=False) as session:
        txgs = [await named(session, b"%d" % number, b"x") for number in range(3)]
        tree = tree_of(session, tmp_path)
        assert await tree.read_directory(PAST_TOP_INO, Cookie(0), 10) == []
        for txg in txgs:
            await found(tree, PAST_TOP_INO, b"txg=%d" % txg)
        pages = [
            await tree.read_directory(PAST_TOP_INO, Cookie(after), 2) for after in (0, txgs[1])
        ]

    assert [[name for name, _, _ in page] for page in pages] == [
        [b"txg=%d" % txgs[0], b"txg=%d" % txgs[1]],
        [b"txg=%d" % txgs[2]],
    ]


async def test_number_of_concurrent_downloads_of_past_blocks_is_bounded(
    plain: Power, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If three times as many reads run in parallel, PAST_DOWNLOADS_MAX of them download."""
    running = most = 0
    read = UncachedReader.read

    async def count(reader: UncachedReader, wanted: Sequence[Located]) -> list[Content]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await trio.testing.wait_all_tasks_blocked()
            return await read(reader, wanted)
        finally:
            running -= 1

    monkeypatch.setattr(UncachedReader, "read", count)
    async with plain.session(tasks=False) as session:
        txgs = [
            await named(session, b"%d" % number, b"%d" % number * 900)
            for number in range(3 * PAST_DOWNLOADS_MAX)
        ]
        tree = tree_of(session, tmp_path)
        root = await found(tree, PAST_TOP_INO, b"txg=%d" % txgs[-1])
        inos = [
            (await found(tree, root.ino, b"%d" % number)).ino
            for number in range(3 * PAST_DOWNLOADS_MAX)
        ]
        async with trio.open_nursery() as nursery:
            for ino in inos:
                nursery.start_soon(tree.read, ino, 0, 5000)

    assert most == PAST_DOWNLOADS_MAX
