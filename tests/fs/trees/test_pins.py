"""Tests of pins: trees whose content is kept in the cache."""

import logging
import time

import pytest
import trio
import trio.testing

from s3fs_meta.errors import NoSpaceLeftError, SettingsError, StoreUnavailableError, UsageError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.trees import pins_file, warm
from s3fs_meta.fs.trees.pins import PinnedTree, Pins
from s3fs_meta.limits import MIB, PIN_PATH_BYTES_MAX, PINS_MAX
from s3fs_meta.meta.tables import block_map
from s3fs_meta.model import ROOT_INO, BlockIndex, BlockState, Ino
from tests.faults import no_threads
from tests.fs.conftest import BLOCK_BYTES, USER, Volume, make_directory, make_file
from tests.fs.trees.samples import fill
from tests.polling import WAIT_S_MAX, until
from tests.tasks import running

AWAY = StoreUnavailableError("pack/x", 3, 8.0, "connection refused")


def _pins(volume: Volume, fs: Filesystem) -> Pins:
    session = volume.session
    recorder = session.volume.recorder
    return Pins(
        fs.db, session.cache, session.volume.state_dir.path, version=lambda: recorder.last_seq
    )


@pytest.fixture
async def pins(volume: Volume, fs: Filesystem) -> Pins:
    """Return the pins of the mounted filesystem."""
    made = _pins(volume, fs)
    await made.load()
    return made


async def _is_cached(volume: Volume, fs: Filesystem, *roots: Ino) -> bool:
    return (await warm.incomplete(fs.db, volume.session.cache, roots, 0)).files == 0


async def _until_cached(volume: Volume, fs: Filesystem, ino: Ino) -> None:
    """Advance the test clock until a file is cached. The download runs in real time."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not await _is_cached(volume, fs, ino):
        assert time.monotonic() < deadline_s, "the file was not downloaded"
        await trio.sleep(1)


async def _until_failed(pins: Pins) -> None:
    """Advance the test clock until a download for the pins fails, which takes real time."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not pins.last_error:
        assert time.monotonic() < deadline_s, "no download has failed"
        await trio.sleep(1)


async def test_pinned_tree_is_not_evicted_until_it_is_unpinned(
    volume: Volume, fs: Filesystem, pins: Pins
) -> None:
    """The list of pins contains the tree and its cached bytes."""
    top = make_directory(fs, b"top")
    inside, outside = make_file(fs, b"f", top), make_file(fs, b"f")
    await fill(fs, inside, 3 * BLOCK_BYTES)
    await fill(fs, outside, 3 * BLOCK_BYTES)
    await volume.upload()
    await pins.add([top])
    await volume.evict()

    assert await _is_cached(volume, fs, inside)
    assert not await _is_cached(volume, fs, outside)
    assert await pins.listing() == [PinnedTree("/top", 3 * BLOCK_BYTES, 3 * BLOCK_BYTES)]
    await pins.remove([top])
    await volume.evict()
    assert not await _is_cached(volume, fs, inside)
    assert await pins.listing() == []


async def test_pins_remain_after_the_daemon_was_killed(volume: Volume) -> None:
    """If the daemon is killed, the next mount reads the pins before it evicts a block."""
    async with volume.mounted() as fs:
        top = make_directory(fs, b"top")
        ino = make_file(fs, b"f", top)
        await fill(fs, ino, BLOCK_BYTES)
        await volume.upload()
        pins = _pins(volume, fs)
        await pins.add([top])
    async with volume.mounted() as fs:
        pins = _pins(volume, fs)
        await pins.load()
        await volume.evict()
        assert await _is_cached(volume, fs, ino)
        assert [one.path for one in await pins.listing()] == ["/top"]


async def test_new_content_of_a_pinned_tree_stays_cached(
    volume: Volume, fs: Filesystem, pins: Pins
) -> None:
    """New and overwritten files of a pinned tree are pinned even before the next check."""
    top = make_directory(fs, b"top")
    old = make_file(fs, b"old", top)
    await fill(fs, old, 2 * BLOCK_BYTES)
    await volume.upload()
    await pins.add([top])
    await fs.write(old, 0, b"changed")
    new = make_file(fs, b"new", make_directory(fs, b"d", make_directory(fs, b"d", top)))
    await fill(fs, new, BLOCK_BYTES)
    await volume.evict()

    assert await _is_cached(volume, fs, old, new)


async def test_deduplicated_content_of_a_pinned_tree_is_not_downloaded(
    volume: Volume, fs: Filesystem, pins: Pins
) -> None:
    """A new block of a pinned tree stays cached, even if an uncached block has the same content."""
    other = make_file(fs, b"other")
    content = await fill(fs, other, 2 * BLOCK_BYTES)
    await volume.evict()
    top = make_directory(fs, b"top")
    await pins.add([top])
    same, outside = make_file(fs, b"same", top), make_file(fs, b"outside")
    await fs.write(same, 0, content[:BLOCK_BYTES])
    await fs.write(outside, 0, content[BLOCK_BYTES:])
    volume.store.calls.clear()
    await volume.evict()

    assert await _is_cached(volume, fs, same)
    assert not await _is_cached(volume, fs, outside)
    assert await fs.read(same, 0, BLOCK_BYTES) == content[:BLOCK_BYTES]
    assert not [
        one for one in volume.store.calls if one.method == "get_range" and "pack/" in one.key
    ]


async def test_check_of_pins_downloads_missing_blocks(
    volume: Volume, fs: Filesystem, pins: Pins, autojump_clock: trio.testing.MockClock
) -> None:
    """If a tree is moved into a pinned directory, the next check downloads the tree."""
    top, other = make_directory(fs, b"top"), make_directory(fs, b"other")
    ino = make_file(fs, b"f", other)
    await fill(fs, ino, 2 * BLOCK_BYTES)
    await pins.add([top])
    await volume.evict()
    async with running(pins.run):
        await trio.testing.wait_all_tasks_blocked()
        assert not await _is_cached(volume, fs, ino)
        fs.namespace.rename(ROOT_INO, b"other", top, b"inside")
        volume.commit()
        await _until_cached(volume, fs, ino)
        await volume.evict()
        assert await _is_cached(volume, fs, ino)


async def test_download_for_pins_continues_after_an_outage(
    volume: Volume, fs: Filesystem, pins: Pins, autojump_clock: trio.testing.MockClock
) -> None:
    """An outage is reported as an error of the pin. The download continues after the outage."""
    ino = make_file(fs, b"f")
    await fill(fs, ino, BLOCK_BYTES)
    await volume.evict()
    volume.store.down = AWAY
    await pins.add([ino])
    async with running(pins.run):
        await trio.sleep(10)
        assert "connection refused" in pins.last_error
        volume.store.down = None
        await _until_cached(volume, fs, ino)
        await trio.sleep(60)
        assert pins.last_error == ""
        calls = len(volume.store.calls)
        await trio.sleep(3600)
        assert len(volume.store.calls) == calls


async def test_damaged_block_of_a_pinned_tree_is_not_requested_repeatedly(
    volume: Volume, fs: Filesystem, pins: Pins, autojump_clock: trio.testing.MockClock
) -> None:
    ino, other = make_file(fs, b"f"), make_file(fs, b"other")
    await fill(fs, ino, BLOCK_BYTES)
    await volume.evict()
    await volume.store.delete([info.key async for info in volume.store.list("pack/")])
    await pins.add([ino, other])
    async with running(pins.run):
        await _until_failed(pins)
        calls = len(volume.store.calls)
        await fs.write(other, 0, b"new")  # A write causes another check of the pins.
        volume.commit()
        await trio.sleep(600)
        assert len(volume.store.calls) == calls


async def test_unreadable_row_of_a_block_in_a_pinned_tree_does_not_prevent_other_downloads(
    volume: Volume, fs: Filesystem, pins: Pins, autojump_clock: trio.testing.MockClock
) -> None:
    ino, other = make_file(fs, b"f"), make_file(fs, b"other")
    await fill(fs, ino, BLOCK_BYTES)
    await fill(fs, other, BLOCK_BYTES)
    await volume.evict()
    fs.db.begin()
    damaged = block_map.find(fs.db, ino, BlockIndex(0))
    fs.db.run("UPDATE blocks SET hash = 'text' WHERE block = ?", (damaged,))
    volume.commit()
    await pins.add([ino, other])

    async with running(pins.run):
        await _until_cached(volume, fs, other)
        await _until_failed(pins)

    assert "invalid values" in pins.last_error
    assert fs.status.writable


async def test_pin_command_and_background_check_do_not_download_concurrently(
    volume: Volume, fs: Filesystem, pins: Pins, autojump_clock: trio.testing.MockClock
) -> None:
    ino = make_file(fs, b"f")
    await fill(fs, ino, BLOCK_BYTES)
    await volume.evict()
    volume.store.calls.clear()
    async with running(pins.run):
        with pins.downloads_paused():
            await pins.add([ino])
            await trio.sleep(60)
            assert volume.store.calls == []
        await _until_cached(volume, fs, ino)


async def test_pin_follows_a_replaced_path_and_a_renamed_file(
    volume: Volume, fs: Filesystem, pins: Pins
) -> None:
    """A pin follows a replaced path and a renamed file. It ends when the file is removed."""
    top = make_directory(fs, b"top")
    first = make_file(fs, b"f", top)
    await pins.add([first])
    second = make_file(fs, b"new", top)
    fs.namespace.rename(top, b"new", top, b"f")
    assert [one.path for one in await pins.listing()] == ["/top/f"]
    assert [pin.ino for pin in pins_file.read(volume.session.volume.state_dir.path)] == [second]

    fs.namespace.rename(ROOT_INO, b"top", ROOT_INO, b"renamed\xff")
    fs.namespace.rename(look_ino(fs, b"renamed\xff"), b"f", ROOT_INO, b"g")
    assert [one.path for one in await pins.listing()] == ["/g"]
    third = make_file(fs, b"third")
    await pins.add([third])
    fs.namespace.unlink(ROOT_INO, b"g")
    assert [one.path for one in await pins.listing()] == ["/third"]
    fs.namespace.unlink(ROOT_INO, b"third")
    assert await pins.listing() == []
    assert not (volume.session.volume.state_dir.path / pins_file.NAME).exists()


def look_ino(fs: Filesystem, name: bytes) -> Ino:
    """Return the inode number of a name in the root directory."""
    found = fs.lookup(ROOT_INO, name)
    assert found is not None
    return found.ino


async def test_pin_in_a_removed_tree_is_dropped_immediately(
    volume: Volume, fs: Filesystem, pins: Pins
) -> None:
    """A pin ends when its tree is removed, even before the rows of the tree are deleted."""
    top = make_directory(fs, b"top")
    below = make_directory(fs, b"below", top)
    await fill(fs, make_file(fs, b"f", below), 100)
    await volume.upload()
    await pins.add([below])
    fs.tree_removal.remove(ROOT_INO, b"top", top)
    assert await pins.listing() == []


async def test_pin_does_not_follow_a_reused_inode_number(
    volume: Volume, fs: Filesystem, pins: Pins
) -> None:
    """After a restore, the inode number in a pin may belong to another file."""
    ino = make_file(fs, b"f")
    found = fs.getattr(ino)
    pins_file.write(
        volume.session.volume.state_dir.path,
        [pins_file.Pin(b"gone", ino, found.btime_ns + 1)],
    )
    other = _pins(volume, fs)
    await other.load()
    assert await other.listing() == []


async def test_pin_of_an_oversized_tree_is_refused_before_any_download(volume: Volume) -> None:
    """If a pin would use too much of the cache, the error explains what to do."""
    async with volume.mounted(cache_bytes=34 * MIB) as fs:
        pins = _pins(volume, fs)
        ino = make_file(fs, b"f")
        await fill(fs, ino, 2 * MIB + 1)
        small = make_file(fs, b"small")
        await fill(fs, small, MIB)
        await volume.evict()
        volume.store.calls.clear()
        with pytest.raises(NoSpaceLeftError, match=r"2\.0 MiB, but pins may use at most 2\.0 MiB"):
            await pins.add([ino])
        await pins.add([small])
        with pytest.raises(NoSpaceLeftError, match="this tree, the pinned trees would take up 3"):
            await pins.add([ino])

        assert [one.path for one in await pins.listing()] == ["/small"]
        assert volume.store.calls == []
        pins.require_cache(33 * MIB)
        with pytest.raises(NoSpaceLeftError, match="run s3fs-meta unpin first"):
            pins.require_cache(33 * MIB - 1)


async def test_pinned_tree_that_exceeds_the_limit_keeps_its_cached_blocks(
    volume: Volume, autojump_clock: trio.testing.MockClock
) -> None:
    """If a pinned tree exceeds the limit on pins, only its additional content can be evicted."""
    async with volume.mounted(cache_bytes=34 * MIB) as fs:
        pins = _pins(volume, fs)
        top = make_directory(fs, b"top")
        first = make_file(fs, b"1", top)
        await fill(fs, first, MIB)
        await volume.upload()
        await pins.add([top])
        second = make_file(fs, b"0", top)
        await fill(fs, second, 3 * MIB)
        await volume.evict()
        cache = volume.session.cache
        assert await _is_cached(volume, fs, first)
        assert cache.index.bytes_in[BlockState.CLEAN] == cache.index.kept_bytes == 2 * MIB

        remounted = _pins(volume, fs)
        await remounted.load()
        assert remounted.over_bytes == 2 * MIB
        assert await _is_cached(volume, fs, first)
        fs.namespace.unlink(top, b"1")
        volume.session.db.commit()
        async with running(remounted.run):
            await trio.sleep(60)
            assert remounted.over_bytes == MIB


async def test_size_of_a_pinned_root_directory_counts_a_shared_block_once(
    volume: Volume, fs: Filesystem, pins: Pins
) -> None:
    """The root directory can be pinned, even if its tree has files without content."""
    await fill(fs, make_file(fs, b"a"), BLOCK_BYTES)
    make_file(fs, b"empty")
    fs.namespace.make_symlink(ROOT_INO, b"link", b"a", USER)
    await volume.upload()
    await pins.add([ROOT_INO])

    assert await pins.listing() == [PinnedTree("/", BLOCK_BYTES, BLOCK_BYTES)]
    await pins.remove([ROOT_INO])


async def test_unpinning_an_unpinned_path_is_refused(fs: Filesystem, pins: Pins) -> None:
    """A file inside a pinned directory is not pinned itself, so unpinning the file fails."""
    top = make_directory(fs, b"top")
    below = make_file(fs, b"f", top)
    await pins.add([top])
    with pytest.raises(UsageError, match="given path is not pinned itself"):
        await pins.remove([top, below])
    assert [one.path for one in await pins.listing()] == ["/top"]


async def test_number_and_length_of_pinned_paths_are_limited(fs: Filesystem, pins: Pins) -> None:
    some = [make_file(fs, b"%d" % number) for number in range(PINS_MAX + 1)]
    with pytest.raises(NoSpaceLeftError, match="pin a directory that contains"):
        await pins.add(some)
    at = ROOT_INO
    for _ in range(PIN_PATH_BYTES_MAX // 201 + 1):
        at = make_directory(fs, b"x" * 200, at)
    with pytest.raises(UsageError, match="a pinned path can have at most"):
        await pins.add([at])
    with pytest.raises(UsageError, match="cannot be pinned"):
        await pins.add([Ino(1 << 40)])
    await pins.add(some[:-1])
    await pins.add(some[:-1])  # A tree can be pinned twice.


@pytest.mark.parametrize("is_renamed", [False, True])
async def test_pinned_tree_is_not_evicted_by_a_mount_that_cannot_start_a_thread(
    volume: Volume, *, is_renamed: bool
) -> None:
    """The mount cannot search for the new path of a renamed tree, but it pins the tree."""
    async with volume.mounted() as fs:
        top = make_directory(fs, b"top")
        ino = make_file(fs, b"f", top)
        await fill(fs, ino, BLOCK_BYTES)
        await volume.upload()
        await _pins(volume, fs).add([top])
        if is_renamed:
            fs.namespace.rename(ROOT_INO, b"top", ROOT_INO, b"new")
            fs.db.commit()
    async with volume.mounted() as fs:
        pins = _pins(volume, fs)
        with no_threads():
            await pins.load()
        await volume.evict()
        assert await _is_cached(volume, fs, ino)
        assert [one.path for one in await pins.listing()] == ["/new" if is_renamed else "/top"]


async def test_unreadable_list_of_pins_is_kept_without_pinning_any_block(
    volume: Volume, fs: Filesystem, caplog: pytest.LogCaptureFixture
) -> None:
    """With an unreadable list of pins the mount works, but it refuses new pins."""
    path = volume.session.volume.state_dir.path / pins_file.NAME
    path.write_bytes(b'{"version": 2}')
    pins = _pins(volume, fs)
    with caplog.at_level(logging.WARNING):
        await pins.load()
    assert "no tree is pinned" in caplog.text
    with pytest.raises(SettingsError, match="upgrade, or remove the file"):
        await pins.add([make_file(fs, b"f")])
    assert path.read_bytes() == b'{"version": 2}'
    path.unlink()
    await pins.add([make_file(fs, b"g")])
    assert [one.path for one in await pins.listing()] == ["/g"]


async def test_interrupted_download_for_a_pin_continues_in_the_background(
    volume: Volume, fs: Filesystem, pins: Pins, autojump_clock: trio.testing.MockClock
) -> None:
    """A recorded pin stays, even if the pin command is interrupted before the download."""
    ino = make_file(fs, b"f")
    await fill(fs, ino, BLOCK_BYTES)
    await volume.evict()
    path = volume.session.volume.state_dir.path / pins_file.NAME
    async with running(pins.run):
        await trio.testing.wait_all_tasks_blocked()
        async with running(pins.add, [ino]):
            while not path.exists():  # noqa: ASYNC110 - a thread creates the file
                await trio.lowlevel.checkpoint()
        await _until_cached(volume, fs, ino)


async def test_failed_write_of_the_list_of_pins_changes_nothing(
    volume: Volume, fs: Filesystem, pins: Pins
) -> None:
    """If the list of pins cannot be written, the pin command fails and the mount continues."""
    state = volume.session.volume.state_dir.path
    ino = make_file(fs, b"f")
    (state / f"{pins_file.NAME}.new").mkdir()
    with pytest.raises(SettingsError, match="cannot write the list of pins"):
        await pins.add([ino])
    assert await pins.listing() == []
    (state / f"{pins_file.NAME}.new").rmdir()
    await pins.add([ino])
    fs.namespace.unlink(ROOT_INO, b"f")
    (state / pins_file.NAME).unlink()
    (state / pins_file.NAME).mkdir()
    with pytest.raises(SettingsError, match="cannot write"):
        await pins.listing()
    fs.db.commit()
    async with running(pins.run):
        pins.check_soon()
        await until(lambda: "cannot write" in pins.last_error)
