"""Power cuts that violated a durability promise in earlier versions."""

import pytest
from typing_extensions import override

from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import lease
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import close_filesystem, open_filesystem
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.operations import Act, Wish
from s3fs_meta.testing.power_cut import SECTOR_BYTES, Dice, Exactly, PageWrite, PowerCut
from s3fs_meta.testing.recorded_disk import Entered, Lost, Noted, SyncedFile
from tests.power.conftest import Boots
from tests.power.recorded_run import (
    COMMIT,
    FLUSH,
    HOST,
    KILL_UNCOMMITTED,
    SYNC,
    CancelledFlush,
    FailedSync,
    Step,
    Stored,
    judge,
    judge_choice,
    record,
)
from tests.sampled import sampled

pytestmark = pytest.mark.thorough

FILE = [Wish(Act.MAKE_FILE), Wish(Act.WRITE, 0, 0, 5, 1)]
FSYNC = Wish(Act.FSYNC)
APPEND = Wish(Act.APPEND, 0, 0, 3, 2)
APPEND_OTHER = Wish(Act.APPEND, 0, 0, 3, 3)
WAL = Pragmas()


async def test_new_state_directory_survives_a_power_cut(
    template: MemoryStore, boots: Boots
) -> None:
    """The directory entries of a new state directory must be synced, or its files are lost."""
    run = await record([*FILE, FSYNC], boots.next_home(), template, WAL)

    await judge_choice(run, len(run.events), Exactly(0), boots.next_home())


class _WithoutLastSector(Dice):
    """A disk that loses the last sector of each page, which SQLite's checksum may not cover."""

    def __init__(self) -> None:
        super().__init__(0)

    @override
    def keeps(self) -> bool:
        return True

    @override
    def sectors(self, piece: PageWrite) -> list[PageWrite]:
        if len(piece.data) <= SECTOR_BYTES:
            return [piece]
        lost = (piece.start + len(piece.data)) % SECTOR_BYTES
        return [piece._replace(data=piece.data[: len(piece.data) - lost])]


class _SizesWithoutPages(Dice):
    """A disk that keeps only the sizes of block files, but the content of all other files."""

    def __init__(self) -> None:
        super().__init__(0)

    @override
    def keeps(self) -> bool:
        return True

    @override
    def page(self, count: int) -> int:
        return 0

    @override
    def size(self, count: int) -> int:
        return count

    @override
    def sectors(self, piece: PageWrite) -> list[PageWrite]:
        return [piece]

    @override
    def torn(self, piece: PageWrite) -> list[PageWrite]:
        return []


async def _judge_sizes(program: list[Step], template: MemoryStore, boots: Boots) -> None:
    """Run a program on a disk that writes file sizes before pages, and check the state."""
    run = await record(program, boots.next_home(), template, WAL)

    await judge_choice(run, len(run.events), _SizesWithoutPages(), boots.next_home())


async def test_block_file_with_lost_pages_but_correct_size_causes_a_read_error(
    template: MemoryStore, boots: Boots
) -> None:
    """The disk may store rows and file sizes before file content, so a block file may be torn."""
    await _judge_sizes([*FILE, COMMIT], template, boots)


async def test_unsynced_end_of_a_page_causes_a_read_error_instead_of_zeros(
    template: MemoryStore, boots: Boots
) -> None:
    """If a power cut keeps only the synced part of a page, only the rest is unreadable."""
    await _judge_sizes([FILE[0], APPEND, FSYNC, APPEND_OTHER, COMMIT], template, boots)


@pytest.mark.parametrize(
    "steps",
    [[FLUSH, APPEND_OTHER], [Wish(Act.TRUNCATE, 0, 1)]],
    ids=["append to an uploaded block", "cut of a dirty block"],
)
async def test_copy_on_write_of_a_block_preserves_synced_content_after_a_power_cut(
    template: MemoryStore, boots: Boots, steps: list[Step]
) -> None:
    program: list[Step] = [FILE[0], APPEND, FSYNC, *steps, COMMIT]

    await _judge_sizes(program, template, boots)


LENGTHEN = Wish(Act.TRUNCATE, 0, 5)  # The new file size is one byte less than a block.


@pytest.mark.parametrize(
    "steps",
    [[LENGTHEN, FSYNC, APPEND], [FLUSH, LENGTHEN, FSYNC, APPEND], [FLUSH, LENGTHEN, FLUSH, APPEND]],
    ids=["dirty block", "dirty block of a longer file", "uploaded block"],
)
async def test_write_after_a_gap_preserves_the_synced_zeros_of_the_gap(
    template: MemoryStore, boots: Boots, steps: list[Step]
) -> None:
    """Unsynced bytes after a gap may be lost, but not the synced zeros of the gap."""
    program: list[Step] = [FILE[0], APPEND, FSYNC, *steps, COMMIT]

    await _judge_sizes(program, template, boots)


AT_0 = Wish(Act.WRITE, 0, 0, 1, 3)  # 100 bytes at the start of a block.
AT_50 = Wish(Act.WRITE, 0, 2, 1, 3)  # 100 bytes at offset 50.
AT_4096 = Wish(Act.WRITE, 0, 4, 3, 4)  # 5000 bytes at offset 4096.
OVERWRITE = Wish(Act.WRITE, 0, 0, 3, 4)  # All bytes that APPEND has written.
AT_END = Wish(Act.WRITE, 0, 5, 0, 5)  # The last byte of a block.


@pytest.mark.parametrize(
    "steps",
    [
        [LENGTHEN, FSYNC, AT_50, AT_END],
        [LENGTHEN, FSYNC, AT_0, AT_END],
        [APPEND, FSYNC, LENGTHEN, FSYNC, AT_4096, AT_END],
        [APPEND, FSYNC, LENGTHEN, FLUSH, AT_4096, AT_END],
        [APPEND, FSYNC, LENGTHEN, FLUSH, OVERWRITE, AT_END],
    ],
    ids=["hole", "start of a hole", "dirty block", "uploaded block", "replaced block"],
)
async def test_several_unsynced_writes_preserve_the_synced_zeros_between_them(
    template: MemoryStore, boots: Boots, steps: list[Step]
) -> None:
    """Synced zeros between two unsynced writes stay readable, even if the writes are lost."""
    await _judge_sizes([FILE[0], *steps, COMMIT], template, boots)


async def test_lost_content_after_a_truncation_inside_a_hole_does_not_become_zeros(
    template: MemoryStore, boots: Boots
) -> None:
    """A read of unsynced content after a power cut returns the content or an error, never zeros."""
    program: list[Step] = [
        *FILE,
        FSYNC,  # The next fsync uses the intent log.
        Wish(Act.MAKE_FILE, 0, 1),
        Wish(Act.TRUNCATE, 1, 5),
        Wish(Act.WRITE, 1, 0, 2, 3),  # 4096 bytes
        Wish(Act.TRUNCATE, 1, 4),
        Wish(Act.FSYNC, 1),
        Wish(Act.APPEND, 1, 0, 3, 4),
        COMMIT,
    ]

    await _judge_sizes(program, template, boots)


async def test_write_into_a_hole_preserves_the_rest_of_the_hole(
    template: MemoryStore, boots: Boots
) -> None:
    """If a write into a synced hole is lost, only the overwritten part may be unreadable."""
    program: list[Step] = [FILE[0], Wish(Act.TRUNCATE, 0, 5), FSYNC, APPEND, COMMIT]
    run = await record(program, boots.next_home(), template, WAL)
    state = PowerCut(run.events).choose(_SizesWithoutPages())
    for path in [path for path in state.names if path.startswith("a/blocks/")]:
        del state.names[path]

    await judge(run, len(run.events), state, boots.next_home())


async def test_reused_block_number_does_not_expose_bytes_of_an_undone_write(
    template: MemoryStore, boots: Boots
) -> None:
    """A power cut may undo the truncation of an old block file that a new block reuses."""
    program: list[Step] = [*FILE, SYNC, APPEND, KILL_UNCOMMITTED, APPEND_OTHER, COMMIT]

    await _judge_sizes(program, template, boots)


async def test_power_cut_during_the_switch_to_wal_mode_damages_nothing(
    template: MemoryStore, boots: Boots
) -> None:
    """A restored database must be intact if the power fails while SQLite switches to WAL mode."""
    run = await record([], boots.next_home(), template, WAL)
    journal = next(
        event.file
        for event in run.events
        if isinstance(event, Entered) and event.path.endswith("meta.db-journal")
    )
    cut = next(
        number
        for number, event in enumerate(run.events)
        if isinstance(event, SyncedFile) and event.file == journal
    )

    await judge_choice(run, cut, _WithoutLastSector(), boots.next_home())


@pytest.mark.parametrize("task_steps", sampled(range(1, 60, 3), 3))
async def test_changelog_of_a_cancelled_flush_is_synced_before_it_is_uploaded(
    template: MemoryStore, boots: Boots, task_steps: int
) -> None:
    """After a power cut, a host must recognise the changelog that it has uploaded as its own."""
    program: list[Step] = [*FILE, FSYNC, CancelledFlush(task_steps), FLUSH]
    run = await record(program, boots.next_home(), template, WAL)
    stored = [
        number
        for number, event in enumerate(run.events, 1)
        if isinstance(event, Noted) and isinstance(event.what, Stored)
    ]

    for cut in stored:
        home = boots.next_home()
        await judge_choice(run, cut, Exactly(0), home)
        assert not list(home.glob("*/kept-*"))


async def test_host_recovers_its_first_lease_after_a_power_cut(
    template: MemoryStore, boots: Boots
) -> None:
    """After a power cut at any event since the first lease, the host can open the filesystem."""
    run = await record([], boots.next_home(), template, WAL)
    taken = [
        number
        for number, event in enumerate(run.events)
        if isinstance(event, Noted)
        and isinstance(event.what, Stored)
        and event.what.key == lease.KEY
    ]
    assert taken
    for cut in range(taken[0] + 1, len(run.events) + 1):
        home = boots.next_home()
        PowerCut(run.events[:cut]).choose(Exactly(0)).write_to(home)
        store = MemoryStore()
        store.objects = run.objects(cut)
        opened = await open_filesystem(
            store, StateDir(home / HOST), Passphrase(bytes), SystemClock(), OpenOptions(pragmas=WAL)
        )
        assert opened.keeper.epoch == 2
        await close_filesystem(opened, release=False)


@pytest.mark.parametrize("path", ["/blocks/", "-wal"])
@pytest.mark.parametrize("last", [SYNC, FSYNC, APPEND_OTHER])
async def test_fsync_after_a_remount_is_durable_although_an_earlier_fsync_failed(
    template: MemoryStore, boots: Boots, path: str, last: Step
) -> None:
    """The kernel reports a failed sync only once, so a later mount must write the pages again."""
    program: list[Step] = [*FILE, FSYNC, APPEND, COMMIT, FailedSync(path), last, FSYNC]
    run = await record(program, boots.next_home(), template, WAL)
    assert any(isinstance(event, Lost) for event in run.events), "no sync has failed"

    for dice in (Exactly(0), Dice(1), Dice(2)):
        await judge_choice(run, len(run.events), dice, boots.next_home())


async def test_truncation_preserves_content_that_is_only_in_the_intent_log(
    template: MemoryStore, boots: Boots
) -> None:
    """If truncation copies and deletes a block, recovery restores the copy from the intent log."""
    make_other = [Wish(Act.MAKE_FILE, 0, 1), Wish(Act.APPEND, 1, 0, 3, 3), Wish(Act.FSYNC, 1)]
    truncate: list[Step] = [Wish(Act.TRUNCATE, 1, 3), Wish(Act.TRUNCATE, 1, 2), COMMIT]
    await _judge_sizes([*FILE, FSYNC, SYNC, *make_other, *truncate], template, boots)
