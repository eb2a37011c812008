"""A recorded session of a filesystem, and checks of the states that a power cut may leave."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import trio
from typing_extensions import override

from s3fs_meta.check.report import Report, Severity
from s3fs_meta.check.run import CacheDirectory, Examined, FsckOptions, check_filesystem
from s3fs_meta.clock import SystemClock
from s3fs_meta.errors import CorruptionError, LostBlockError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.slices import Slices
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.limits import KIB, MIB
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO, AccessTime, Ino, ObjectKey, Txg
from s3fs_meta.objects.contract import ETag
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.options.settings import FilesystemOptions, SessionOptions
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.history import differences
from s3fs_meta.testing.model_fs import ModelFilesystem, Seen
from s3fs_meta.testing.observation import numbers_of_copy, tree_of
from s3fs_meta.testing.operations import Act, Operation, Outcome, Wish, apply, choose, perform
from s3fs_meta.testing.power_cut import Dice, PowerCut, State
from s3fs_meta.testing.recorded_disk import (
    DiskRecorder,
    Event,
    Noted,
    contents_of,
    recording,
    replay,
)
from s3fs_meta.testing.recorded_vfs import recorded_sqlite
from tests.fs.past.copying import Copier, at_path
from tests.model.machine import CancelAfter

HOST: Final = "a"
_SESSION: Final = SessionOptions(cache_bytes=64 * MIB)
_READ_BYTES: Final = 512  # The smallest unit of content that a power cut can lose.
_OPTIONS: Final = FilesystemOptions(access_time=AccessTime.NEVER)
_CONTENT: Final = frozenset({Act.WRITE, Act.APPEND, Act.TRUNCATE, Act.COPY_RANGE})


class Stored(NamedTuple):
    """The event that an object was stored, or that it was deleted if *data* is None."""

    key: ObjectKey
    data: bytes | None


class Began(NamedTuple):
    """The event that an operation began; parts of the operation may exist after a power cut."""

    number: int


class Promised(NamedTuple):
    """The event that all operations before a given number became durable."""

    number: int


class _RecordedStore(MemoryStore):
    """A store that records every change of its objects."""

    def __init__(self, recorder: DiskRecorder, template: MemoryStore) -> None:
        super().__init__()
        self.objects = dict(template.objects)
        self._recorder = recorder

    @override
    async def put(self, key: ObjectKey, data: bytes | memoryview) -> None:
        await super().put(key, data)
        self._recorder.note(Stored(key, bytes(data)))

    @override
    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        etag = await super().create(key, data)
        self._recorder.note(Stored(key, bytes(data)))
        return etag

    @override
    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        new_etag = await super().replace(key, data, etag)
        self._recorder.note(Stored(key, bytes(data)))
        return new_etag

    @override
    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        await super().delete(keys)
        for key in keys:
            self._recorder.note(Stored(key, None))


@dataclass
class Run:
    """A recorded run: its operations and its requests to the disk."""

    template: MemoryStore
    pragmas: Pragmas
    events: list[Event] = field(default_factory=list)
    states: list[ModelFilesystem] = field(default_factory=lambda: [ModelFilesystem()])
    operations: list[Operation] = field(default_factory=list)
    undone: list[range] = field(default_factory=list)  # States that a kill has rolled back.

    def record_rollback(self, found: dict[bytes, Seen], next_ino: int) -> None:
        """After a kill, append the earlier state that the mount restored as the newest state."""
        newest = len(self.operations)
        for number in range(newest, -1, -1):
            state = self.states[number].crashed()
            if state.tree() == found and state.next_ino == next_ino:
                self.undone.append(range(number + 1, newest + 1))
                self.operations.append(Operation(Act.RELEASE, Ino(0)))
                self.states.append(state)
                return
        raise AssertionError("the tree matches no earlier state after the daemon was killed")

    def versions(self, cut: int, number: int) -> list[ModelFilesystem]:
        """Return the states whose bytes may exist if the rows are from state *number*."""
        window = range(self.promised(cut), self.begun(cut) + 1)
        gone = {one for taken in self.undone if number >= taken.stop for one in taken}
        return [self.states[one] for one in window if one not in gone and one < len(self.states)]

    def objects(self, cut: int) -> dict[ObjectKey, bytes]:
        """Return the objects in the store at the time of a power cut."""
        objects = dict(self.template.objects)
        for event in self.events[:cut]:
            if isinstance(event, Noted) and isinstance(event.what, Stored):
                if event.what.data is None:
                    objects.pop(event.what.key, None)
                else:
                    objects[event.what.key] = event.what.data
        return objects

    def promised(self, cut: int) -> int:
        """Return the number of operations that are durable at a power cut."""
        return max(
            (what.number for what in self._notes(cut) if isinstance(what, Promised)), default=0
        )

    def begun(self, cut: int) -> int:
        """Return the number of operations that may have left traces on the disk at a power cut."""
        return max(
            (what.number + 1 for what in self._notes(cut) if isinstance(what, Began)), default=0
        )

    def _notes(self, cut: int) -> list[object]:
        return [event.what for event in self.events[:cut] if isinstance(event, Noted)]


# --- recording a run -----------------------------------------------------------------------------

# Free space in the WAL after each fsync: only a few frames, so that some writes exceed it.
ROOM_BYTES: Final = 20_000
# Size of the intent log: only a few entries, so that the log restarts within a run.
INTENT_LOG_BYTES: Final = 32 * KIB

# Steps of a recorded program that are not operations of users.
COMMIT, SYNC, BUSY, UPLOAD, FLUSH, EVICT, READ, REMOUNT, KILL, KILL_UNCOMMITTED = (
    "commit",
    "sync",
    "busy",  # A sync during which the next operation begins.
    "upload",
    "flush",
    "evict",
    "read",
    "remount",
    "kill",
    "kill_uncommitted",
)


class FailedSync(NamedTuple):
    """A sync that fails, after which the daemon is killed."""

    path: str  # Syncs fail for files whose path contains this text.
    at_end: bool = False  # True if the failing sync belongs to an unmount.


class CancelledFlush(NamedTuple):
    """A flush that is cancelled after a number of scheduler steps."""

    task_steps: int


class PastCopy(NamedTuple):
    """A copy of a root directory entry in the state of an earlier flush, under an unused name."""

    flush: int  # A number that selects one flush.
    entry: int  # A number that selects one directory entry.


Step = Wish | CancelledFlush | FailedSync | PastCopy | str


async def record(
    program: Sequence[Step], home: Path, template: MemoryStore, pragmas: Pragmas
) -> Run:
    """Run a program, check that the recording is complete, and return the recording."""
    recorder = DiskRecorder(home)
    run = Run(template, pragmas, recorder.events)
    store = _RecordedStore(recorder, template)
    with recording(recorder), recorded_sqlite(recorder):
        recorded = _Recorded(run, recorder, store, home)
        await recorded.open()
        for step in program:
            await recorded.take(step)
        count = len(run.events)
        assert replay(run.events) == contents_of(home), (
            "the recorder has missed a request to the disk"
        )
        recorded.session.volume.db.close()
        recorded.session.volume.state_dir.unlock()
        del run.events[count:]
    return run


class _Recorded:
    """The open session whose requests are recorded."""

    def __init__(self, run: Run, recorder: DiskRecorder, store: MemoryStore, home: Path) -> None:
        self._run, self._recorder, self._store, self._home = run, recorder, store, home
        self._busy = False
        self._flushed: dict[Txg, ModelFilesystem] = {}
        self._copies = 0
        self.session: Session
        self.fs: Filesystem

    async def open(self) -> None:
        """Mount the filesystem."""
        self.session, self.fs = await open_session(
            self._store, self._home / HOST, self._run.pragmas
        )

    async def take(self, step: Step) -> None:
        """Execute one step of the recorded program."""
        if isinstance(step, Wish):
            operation = choose(self._run.states[-1], step)
            if operation is not None:
                await self.do(operation)
            return
        if isinstance(step, CancelledFlush):
            await self._cancelled_flush(step)
            return
        if isinstance(step, FailedSync):
            await self._failed_sync(step)
            return
        if isinstance(step, PastCopy):
            await self._copy_past(step)
            return
        done = len(self._run.operations)
        await (self._keep_busy() if step == BUSY else getattr(self, f"_{step}")())
        if step in {SYNC, FLUSH, REMOUNT}:
            self._recorder.note(Promised(done))

    async def do(self, operation: Operation) -> None:
        """Execute one operation of a user."""
        number = len(self._run.operations)
        after = self._run.states[-1].copy()
        expected = apply(after, operation)
        self._recorder.note(Began(number))
        if self._busy:
            await self._do_during_sync(operation, expected)
            self._recorder.note(Promised(number))
        else:
            assert await perform(self.fs, operation) == expected
        self._run.operations.append(operation)
        self._run.states.append(after)
        if operation.act is Act.FSYNC:
            self._recorder.note(Promised(number + 1))
            await self._make_log_room()

    async def _make_log_room(self) -> None:
        """Allocate space for the WAL and the intent log, as a background task does."""
        if (wal := self.session.db.wal) is not None:
            wal.append_room(ROOM_BYTES)
            wal.sync()
            block_sync = self.session.cache.block_sync
            if block_sync.wants_log and self.session.db.pragmas.survives_power_loss:
                await block_sync.prepare_log(INTENT_LOG_BYTES)

    async def _do_during_sync(self, operation: Operation, expected: Outcome) -> None:
        self._busy = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.session.durability.sync_all)
            await trio.lowlevel.checkpoint()
            assert await perform(self.fs, operation) == expected

    async def _keep_busy(self) -> None:
        self._busy = True

    async def _commit(self) -> None:
        self.session.durability.commit()

    async def _sync(self) -> None:
        await self.session.durability.sync_all()

    async def _upload(self) -> None:
        uploader = self.session.uploader
        while batch := await uploader.sealer.next_batch(0.0):
            await uploader.acquire(batch)
            await uploader.ship_and_release(batch)

    async def _flush(self) -> None:
        await self.session.flush()
        self._flushed[self.session.link.txg] = self._run.states[-1]

    async def _copy_past(self, step: PastCopy) -> None:
        """Copy a directory entry in slices, each of which is one commit group."""
        choices = [
            (txg, name)
            for txg, past in list(self._flushed.items())[step.flush % max(len(self._flushed), 1) :]
            for name in sorted(past.nodes[ROOT_INO].entries)
        ]
        if not choices:
            return
        txg, name = choices[step.entry % len(choices)]
        self._copies += 1
        target, number = CloneTarget(ROOT_INO, b"past %d" % self._copies), len(self._run.operations)
        after, first = self._run.states[-1].copy(), self._run.states[-1].next_ino
        after.clone(ROOT_INO, name, *target, self._flushed[txg])
        self._recorder.note(Began(number))
        with tempfile.TemporaryDirectory() as place:
            copier = Copier(self.fs, self.session, Path(place))
            await copier.copy(txg, at_path(name), target)
            await copier.close()
        numbers = numbers_of_copy(self.fs, after, *target, first=first)
        after.renumber(numbers, Ino(self.session.db.counters.next_ino))
        self._run.operations.append(Operation(Act.CLONE, ROOT_INO, name, *target))
        self._run.states.append(after)

    async def _cancelled_flush(self, step: CancelledFlush) -> None:
        with trio.CancelScope() as scope:
            steps = CancelAfter(step.task_steps, scope)
            trio.lowlevel.add_instrument(steps)
            try:
                await self.session.flush()
            finally:
                trio.lowlevel.remove_instrument(steps)

    async def _failed_sync(self, step: FailedSync) -> None:
        done = len(self._run.operations)
        if step.at_end:
            self._release_all()
        self._recorder.failing = step.path
        try:
            await (self.session.close() if step.at_end else self.session.durability.sync_all())
        except OSError:
            await self._kill_uncommitted()
        else:  # The sync did not use the file with the injected failure.
            self._recorder.failing = ""
            self._recorder.note(Promised(done))
            if step.at_end:
                await self.open()

    async def _evict(self) -> None:
        self.session.cache.evictor.evict_bytes(1 << 60)

    async def _read(self) -> None:
        await tree_of(self.fs)

    async def _remount(self) -> None:
        self._release_all()
        await self.session.close()
        await self.open()

    def _release_all(self) -> None:
        """Close all open files, as an unmount requires."""
        for ino, count in self._run.states[-1].opens.items():
            for _ in range(count):
                self.fs.release(ino)
        self._run.states[-1] = self._run.states[-1].crashed()

    async def _kill(self) -> None:
        """Kill the daemon after a commit, and mount the filesystem."""
        await self._commit()
        await self._kill_uncommitted()

    async def _kill_uncommitted(self) -> None:
        """Kill the daemon while a commit group is open, and mount the state before this group."""
        self._recorder.note(Began(len(self._run.operations)))
        self.session.volume.db.close()
        self.session.volume.state_dir.unlock()
        await self.open()
        self._run.record_rollback(await tree_of(self.fs), self.session.db.counters.next_ino)


async def open_session(
    store: MemoryStore, state: Path, pragmas: Pragmas
) -> tuple[Session, Filesystem]:
    """Mount the filesystem without background tasks; take over the lease if it is held."""
    opened = await open_filesystem(
        store,
        StateDir(state),
        Passphrase(bytes),
        SystemClock(),
        OpenOptions(pragmas=pragmas, force_takeover=True),
    )
    session = Session(opened, _SESSION, SystemClock())
    session.recover()
    session.start()
    fs = Filesystem(
        opened.db,
        session.cache,
        session.status,
        SystemClock(),
        _OPTIONS,
        sync_file=session.durability.sync_file,
        # Small slices divide a copy into several commit groups.
        slices=Slices(cloned_names=2, directories=1, shared_blocks=2),
    )
    await _remove_orphans(fs)
    return session, fs


async def _remove_orphans(fs: Filesystem) -> None:
    """Remove all files and trees that no dentry refers to, as a mount does."""
    fs.adopt_orphans()
    while len(fs.orphans.trees):
        fs.tree_removal.remove_slice()
    for ino in inodes.orphans(fs.db):
        await fs.orphans.purge(ino)


# --- checking a state after a power cut ----------------------------------------------------------


async def judge_choice(run: Run, cut: int, dice: Dice, home: Path) -> None:
    """Check a randomly chosen state that a power cut may leave."""
    await judge(run, cut, PowerCut(run.events[:cut]).choose(dice), home)


async def judge(run: Run, cut: int, state: State, home: Path) -> None:
    """Mount the state after a power cut as on the next boot; check all durability promises."""
    state.write_to(home)
    store = MemoryStore()
    store.objects = run.objects(cut)
    session, fs = await open_session(store, home / HOST, run.pragmas)
    try:
        number = await _find(run, cut, fs)
        changed = _changed(run, cut)
        await _judge_contents(run, cut, number, fs)
        await _judge_fsck(session, store, changed)
        await _write_after_the_cut(session, fs, may_be_lost=bool(changed))
    finally:
        session.volume.db.close()
        session.volume.state_dir.unlock()


async def _find(run: Run, cut: int, fs: Filesystem) -> int:
    """Return the number of operations whose names and sizes the rows contain."""
    found = await tree_of(fs, content=False)
    promised, begun = run.promised(cut), min(run.begun(cut), len(run.operations))
    for number in range(begun, promised - 1, -1):
        if _without_contents(run.states[number].crashed()) == found:
            assert fs.db.counters.inodes == len({entry.ino for entry in found.values()})
            return number
    nearest = _without_contents(run.states[promised].crashed())
    lines = differences(nearest, found)
    raise AssertionError(
        "\n".join([f"the tree matches no state after {promised} to {begun} operations:", *lines])
    )


def _without_contents(model: ModelFilesystem) -> dict[bytes, Seen]:
    return {path: entry._replace(content=None) for path, entry in model.tree().items()}


def _changed(run: Run, cut: int) -> set[Ino]:
    """Return the files whose content may have changed after the last durable operation."""
    since = run.operations[run.promised(cut) : run.begun(cut)]
    return {operation.ino for operation in since if operation.act in _CONTENT}


async def _judge_contents(run: Run, cut: int, number: int, fs: Filesystem) -> None:
    """Require that every byte is from the last durable state or from a later state.

    Only files changed after the last durable state can have lost data.
    """
    model = run.states[number]
    changed = _changed(run, cut)
    for path, ino in model.crashed().paths():
        if not model.nodes[ino].is_file:
            continue
        versions = [
            version.nodes[ino].content
            for version in run.versions(cut, number)
            if ino in version.nodes
        ]
        versions.append(model.nodes[ino].content)
        size = len(model.nodes[ino].content)
        ends = {len(version) for version in versions} & set(range(size))
        for start, stop in pairwise(sorted({*range(0, size, _READ_BYTES), *ends, size})):
            is_same = len({version[start:stop] for version in versions}) == 1
            may_be_lost = ino in changed and not is_same
            await _judge_piece(fs, path, ino, start, stop, versions, may_be_lost=may_be_lost)


async def _judge_piece(
    fs: Filesystem,
    path: bytes,
    ino: Ino,
    start: int,
    stop: int,
    versions: list[bytes],
    *,
    may_be_lost: bool,
) -> None:
    try:
        data = await fs.read(ino, start, stop - start)
    except CorruptionError as exc:
        if may_be_lost:
            return
        raise AssertionError(f"cannot read {path!r} at byte {start}: {exc}") from exc
    if any(version[start:stop] == data for version in versions):
        return
    for offset, byte in enumerate(data, start):
        allowed = {version[offset] for version in versions if offset < len(version)}
        assert byte in allowed, f"{path!r} at {offset}: {byte} is none of {allowed}"


async def _judge_fsck(session: Session, store: MemoryStore, changed: set[Ino]) -> None:
    """Require that fsck finds only lost content of files changed after the last durable state."""
    session.durability.commit()
    opened = session.volume
    cache = CacheDirectory(opened.state_dir.blocks, opened.state_dir.tmp)
    examined = Examined(opened.db, store, opened.keyring, cache)
    report = await check_filesystem(examined, FsckOptions(), Report(), SystemClock())
    damage = [
        str(finding)
        for verdict in report.verdicts
        if verdict.severity is Severity.DAMAGE
        for finding in verdict.examples
        if not (finding.invariant == LOST and finding.ino in changed)
    ]
    assert damage == [], damage


LOST: Final = "I43"  # invariant I43: the cache file of a dirty block is complete


async def _write_after_the_cut(session: Session, fs: Filesystem, *, may_be_lost: bool) -> None:
    """Write to the filesystem after a power cut, and upload the changes unless content is lost."""
    apply_to = Operation(Act.MAKE_FILE, Ino(1), b"after the cut", number=0o100644)
    assert await perform(fs, apply_to) is None
    made = fs.lookup(Ino(1), b"after the cut")
    assert made is not None
    assert await fs.write(made.ino, 0, b"more") == 4
    await fs.sync_file(made.ino)
    try:
        await session.flush()
    except LostBlockError:
        assert may_be_lost
