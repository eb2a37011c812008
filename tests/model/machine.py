"""A filesystem and its model, which run together through commits, kills, outages and takeovers."""

import enum
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import trio
from typing_extensions import override

from s3fs_meta.check.report import Report, Severity
from s3fs_meta.check.run import CacheDirectory, Examined, FsckOptions, check_filesystem
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.changelog import Changelog, Kind
from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.limits import MIB
from s3fs_meta.meta.db.group_listeners import Recorder
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO, AccessTime, Epoch, Ino, Txg
from s3fs_meta.mount_state import MountState
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.objects.retry import RetryingStore, RetryPolicy
from s3fs_meta.options.settings import FilesystemOptions, SessionOptions
from s3fs_meta.sync.administration.mkfs import NewFilesystem, make_filesystem
from s3fs_meta.sync.hooks import STEPS, TAKEOVER_STEPS
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.lease.keeper import LeaseKeeper
from s3fs_meta.sync.opening.opening import open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.history import History, differences
from s3fs_meta.testing.model_fs import ModelFilesystem
from s3fs_meta.testing.observation import numbers_of_copy, seen, tree_of
from s3fs_meta.testing.operations import BLOCK_BYTES, Act, Operation, Wish, apply, choose, perform
from s3fs_meta.testing.sudden_end import kill
from tests.fs.past.copying import Copier, at_path
from tests.model.outages import Outages

HOSTS: Final = ("a", "b")
# A flush is cancelled after 20, 12 or 1 failed attempts. Each request has 8 attempts.
_PATIENCE: Final = (20, 12, 1, 1)
_SESSION: Final = SessionOptions(cache_bytes=64 * MIB, read_timeout_s=1e9, write_timeout_s=1e9)
_RETRIES: Final = RetryPolicy(total_s_max=1e9)  # Retries must not time out on a slow machine.
_SILENT: Final = ("get", "get_range", "put", "create", "replace", "delete", "list")
_UNHEARD: Final = ("create", "replace", "put", "delete")

_Ship = Callable[[], Awaitable[object]]


class Event(enum.Enum):
    """Events other than operations of users."""

    COMMIT = "the group commits"
    SYNC = "the background sync runs"
    UPLOAD = "old blocks are uploaded"
    FLUSH = "a txg is shipped"
    IMAGE = "an image is made"
    EVICT = "all clean blocks are evicted"
    COMPACT = "mostly dead packs are compacted"
    READ = "all files are read"
    COPY_PAST = "an entry of the root directory is copied from an earlier txg"
    KILL = "the daemon is killed"
    KILL_IN_IMAGE = "the daemon is killed at one step of a flush or an image"
    HICCUP = "one request of a flush fails"
    UNHEARD = "one reply to a flush is lost"
    CANCEL = "a flush is cancelled"
    CANCEL_IMAGE = "an image is cancelled"
    OUTAGE = "the store is unreachable during a part of a flush"
    OUTAGE_IN_IMAGE = "the store is unreachable while an image is made"
    REMOUNT = "the filesystem is unmounted and mounted again"
    KILL_IN_TAKEOVER = "a host is killed during a takeover, and then tries again"
    MOVE = "another host takes over after an unmount or a kill"


class Happening(NamedTuple):
    """An event, and two random numbers that select its details."""

    event: Event
    a: int = 0
    b: int = 0


Step = Wish | Happening


class _Killed(BaseException):
    """An exception that simulates the daemon being killed."""


def _is_kill(exc: BaseException) -> bool:
    """Return whether an exception, or each exception of a group, is a simulated kill."""
    inner = getattr(exc, "exceptions", None)
    return isinstance(exc, _Killed) if inner is None else all(map(_is_kill, inner))


class Host:
    """A host with its name, and the history of the filesystem in the host's state directory."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.history: History | None = None  # None before the host's first mount.


class Machine:
    """A machine that runs programs on the filesystem and on its model, and compares the two."""

    def __init__(self, home: Path, template: MemoryStore, pragmas: Pragmas | None = None) -> None:
        self._home = home
        self._pragmas = pragmas or Pragmas()
        self._memory = MemoryStore()
        self._memory.objects = dict(template.objects)
        self._faulty = Outages(self._memory)
        self._hosts = {name: Host(name) for name in HOSTS}
        self._host = self._hosts["a"]
        superblock = superblock_codec.decode(
            superblock_codec.KEY, self._memory.objects[superblock_codec.KEY]
        )
        self._keyring = superblock_codec.unlock_plain(superblock)
        self._writers: dict[Epoch, Host] = {}
        # The model at the cut of each txg, by epoch and txg.
        self._cuts: dict[tuple[Epoch, Txg], ModelFilesystem] = {}
        self._births: dict[Ino, int] = {}  # Birth time of each inode when it was first observed.
        self._kill_at = ""
        self._copies = 0  # Number of entries copied from the past root directory.
        self.session: Session
        self.fs: Filesystem

    # --- execution of programs -----------------------------------------------------------------

    async def run(self, program: list[Step]) -> None:
        """Run a program. A mount after a kill, and then a takeover, must find an allowed state."""
        await self._open()
        for step in program:
            if isinstance(step, Happening):
                await self.happen(step)
            else:
                operation = choose(self.model, step)
                if operation is not None:
                    await self.do(operation)
        await self.happen(Happening(Event.KILL))
        await self.happen(Happening(Event.MOVE))
        kill(self.session.volume)

    @property
    def history(self) -> History:
        """Return the history since this host opened the filesystem."""
        assert self._host.history is not None, "the filesystem must be open"
        return self._host.history

    @property
    def model(self) -> ModelFilesystem:
        """Return the expected state of the filesystem."""
        return self.history.now

    async def do(self, operation: Operation) -> None:
        """Execute one operation on the filesystem and on the model; compare the results."""
        after = self.model.copy()
        expected = apply(after, operation)
        actual = await perform(self.fs, operation)
        assert actual == expected, f"{operation} returned {actual}, not {expected}"
        if operation.act is Act.CLONE and actual is None:
            self._take_numbers(operation, after)
        self.history.add(operation, after)
        if operation.act is Act.CLONE:  # A clone needs several commit groups.
            self.session.durability.commit()
        if not self.session.db.in_group:
            self.history.note_commit()
        await self._compare(content=False)
        if operation.ino in after.nodes and after.nodes[operation.ino].is_file:
            found = await seen(self.fs, self.fs.getattr(operation.ino))
            wanted = after.seen(operation.ino)
            assert found == wanted, differences({b"": wanted}, {b"": found})

    def _take_numbers(self, operation: Operation, after: ModelFilesystem) -> None:
        """Give the entries of a copied tree in the model the inode numbers of the filesystem."""
        target = operation.new_parent, operation.new_name
        after.renumber(
            numbers_of_copy(self.fs, after, *target, first=self.model.next_ino),
            Ino(self.session.db.counters.next_ino),
        )

    async def happen(self, happening: Happening) -> None:
        """Execute one event; compare the tree with the model."""
        await self._events[happening.event](self, happening)
        assert self.session.status.state is MountState.SERVING, self.session.status.why
        await self._compare(content=False)

    async def _compare(self, *, content: bool) -> None:
        found = await tree_of(self.fs, content=content)
        expected = self.model.tree()
        if not content:
            expected = {path: entry._replace(content=None) for path, entry in expected.items()}
        assert found == expected, differences(expected, found)
        for path, entry in found.items():
            born_ns = inodes.get(self.session.db, entry.ino).btime_ns
            assert self._births.setdefault(entry.ino, born_ns) == born_ns, path

    # --- events that do not change the tree ------------------------------------------------------

    async def _commit(self, _: Happening) -> None:
        self.session.durability.commit()
        self.history.note_commit()

    async def _sync(self, _: Happening) -> None:
        await self.session.durability.sync_all()
        self.history.note_commit()

    async def _upload(self, _: Happening) -> None:
        uploader = self.session.uploader
        while batch := await uploader.sealer.next_batch(0.0):
            await uploader.acquire(batch)
            await uploader.ship_and_release(batch)

    async def _flush(self, _: Happening) -> None:
        await self.session.flush()
        self._require_all_shipped()

    async def _image(self, _: Happening) -> None:
        await self.session.make_image()
        self._require_all_shipped()

    def _require_all_shipped(self) -> None:
        """Require that the bucket contains the effects of all operations."""
        self.history.note_commit()
        expected, found = self.model.tree(), self._in_bucket().tree()
        assert found == expected, differences(expected, found)

    async def _evict(self, _: Happening) -> None:
        self.session.cache.evictor.evict_bytes(1 << 60)

    async def _compact(self, happening: Happening) -> None:
        await self._flush(happening)
        await self.session.compactor.run_once()

    async def _read(self, _: Happening) -> None:
        await self._compare(content=True)

    async def _copy_past(self, happening: Happening) -> None:
        """Copy an entry of the root directory at the end of a txg to an unused name."""
        links = [link for link in self._links() if link.kind is not Kind.FENCE]
        if not links:
            return
        link = links[happening.a % len(links)]
        past, after = self._cuts[link.epoch, link.txg], self.model.copy()
        names = sorted(past.nodes[ROOT_INO].entries)
        if not names:
            return
        name, self._copies = names[happening.b % len(names)], self._copies + 1
        target = CloneTarget(ROOT_INO, b"past %d" % self._copies)
        operation = Operation(Act.CLONE, ROOT_INO, name, *target)
        after.clone(ROOT_INO, name, *target, past)
        copier = Copier(self.fs, self.session)
        await copier.copy(link.txg, at_path(name), target)
        await copier.close()
        self._take_numbers(operation, after)
        self.history.add(operation, after)
        self.session.durability.commit()  # A copy needs several commit groups.
        self.history.note_commit()
        await self._compare(content=True)

    # --- failures of the store -------------------------------------------------------------------

    async def _flush_with_a_failed_request(self, happening: Happening) -> None:
        """Flush while one request fails. The failure must have no visible effect."""
        self._faulty.fail(_SILENT[happening.a % len(_SILENT)])
        await self._flush(happening)
        await self._compare(content=True)
        self._faulty.come_back()

    async def _flush_with_a_lost_reply(self, happening: Happening) -> None:
        """Flush while one reply is lost. The loss must have no visible effect."""
        self._faulty.lose_reply(_UNHEARD[happening.a % len(_UNHEARD)])
        await self._flush(happening)
        self._faulty.come_back()

    async def _cancel(self, happening: Happening) -> None:
        await self._cancelled(happening, self.session.flush)

    async def _cancel_image(self, happening: Happening) -> None:
        await self._cancelled(happening, self.session.make_image)

    async def _cancelled(self, happening: Happening, ship: _Ship) -> None:
        """Cancel a flush or an image after some steps. A second attempt must ship all changes."""
        with trio.CancelScope() as scope:
            steps = CancelAfter(4 * happening.a + happening.b, scope)
            trio.lowlevel.add_instrument(steps)
            try:
                await ship()
            finally:
                trio.lowlevel.remove_instrument(steps)
        await ship()
        self._require_all_shipped()

    async def _outage(self, happening: Happening) -> None:
        await self._interrupted(happening, self.session.flush)

    async def _outage_in_image(self, happening: Happening) -> None:
        await self._interrupted(happening, self.session.make_image)

    async def _interrupted(self, happening: Happening, ship: _Ship) -> None:
        """Stop the store during a flush or an image; an odd *happening.b* also loses a reply.

        After the outage, a second flush or image must ship all changes.
        """
        with trio.CancelScope() as scope:
            self._faulty.go_away_after(
                happening.a % 12,
                lose_reply=bool(happening.b % 2),
                patience=_PATIENCE[happening.b % len(_PATIENCE)],
                give_up=scope.cancel,
            )
            try:
                await ship()
            except StoreUnavailableError:
                pass
        self._faulty.come_back()
        await ship()
        self._require_all_shipped()

    # --- kills and unmounts of the daemon --------------------------------------------------------

    async def _kill(self, _: Happening) -> None:
        kill(self.session.volume)
        await self._open()

    async def _kill_in_image(self, happening: Happening) -> None:
        self._kill_at = STEPS[(16 * happening.b + happening.a) % len(STEPS)]
        try:
            await self.session.make_image()
        except BaseException as exc:  # noqa: ASYNC103 - the simulated kill is expected
            if not _is_kill(exc):
                raise
        self._kill_at = ""
        await self._kill(happening)

    def _hook(self, step: str) -> None:
        if step == "txg cut":
            txg = Txg(self.session.db.counters.txg - 1)
            self._cuts[self.session.volume.keeper.epoch, txg] = self.model.copy()
        if step == self._kill_at:
            self._kill_at = ""
            raise _Killed(step)

    async def _remount(self, happening: Happening) -> None:
        if happening.a % 2:
            await self._flush(happening)
        await self._close()
        await self._open()

    async def _move(self, happening: Happening) -> None:
        """End the mount with or without a flush, or by a kill. Then take over on another host."""
        if happening.a % 3 == 0:
            await self._flush(happening)
        if happening.a % 3 == 2:
            kill(self.session.volume)
        else:
            await self._close()
        self._host = self._other_host
        await self._open(force=True)

    @property
    def _other_host(self) -> Host:
        return self._hosts[HOSTS[(HOSTS.index(self._host.name) + 1) % len(HOSTS)]]

    async def _kill_in_takeover(self, happening: Happening) -> None:
        """Kill the daemon, and then the next daemon during its takeover; then mount again."""
        kill(self.session.volume)
        if happening.a % 2:
            self._host = self._other_host
        self._kill_at = TAKEOVER_STEPS[happening.b % (len(TAKEOVER_STEPS) - 1)]
        try:
            await self._open(force=True)
        except _Killed:
            lease = await LeaseKeeper(self._memory, SystemClock()).read()
            self._writers[lease.epoch] = self._host
        assert not self._kill_at, "the takeover did not reach the step of the kill"
        if happening.a % 4 > 1:
            self._host = self._other_host
        await self._open(force=True)

    async def _close(self) -> None:
        for ino, count in self.model.opens.items():
            for _ in range(count):
                self.fs.release(ino)
        await self.session.close()
        self._host.history = History(self.model.crashed())

    # --- mounts of the filesystem ----------------------------------------------------------------

    async def _open(self, *, force: bool = False) -> None:
        """Mount on the current host, find its state in the history, and run fsck."""
        host, end = self._host, self._end()
        if host.history is None or (end is not None and self._writers[end.epoch] is not host):
            host.history = History(self._in_bucket().crashed())
        opened = await open_filesystem(
            RetryingStore(self._faulty, _RETRIES),
            StateDir(self._home / host.name),
            Passphrase(bytes),
            SystemClock(),
            OpenOptions(pragmas=self._pragmas, force_takeover=force, hook=self._hook),
        )
        self.session = Session(opened, _SESSION, SystemClock(), self._hook)
        self.session.recover()
        self.session.start()
        self.fs = Filesystem(
            opened.db,
            self.session.cache,
            self.session.status,
            SystemClock(),
            FilesystemOptions(access_time=AccessTime.NEVER),
            sync_file=self.session.durability.sync_file,
        )
        self._writers[opened.keeper.epoch] = host
        # Inodes from this number on were lost, so their numbers may be assigned again.
        next_ino = opened.db.counters.next_ino
        self._births = {ino: ns for ino, ns in self._births.items() if ino < next_ino}
        await self._purge_orphans()
        await self._continue_from_tree()
        opened.db.commit()
        opened.db.record_with(_CommitNotes(opened.recorder, self.history), opened.recorder)
        await self._check()

    async def _purge_orphans(self) -> None:
        self.fs.adopt_orphans()
        while len(self.fs.orphans.trees):
            self.fs.tree_removal.remove_slice()
        for ino in inodes.orphans(self.session.db):
            await self.fs.orphans.purge(ino)

    async def _continue_from_tree(self) -> None:
        """Find the earlier state that equals the tree of the filesystem, and continue from it."""
        tree = await tree_of(self.fs)
        state = self.history.find(tree, Ino(self.session.db.counters.next_ino))
        if state is None:
            newest = self.model.crashed().tree()
            raise AssertionError(
                "\n".join(
                    ["the tree equals none of the allowed states:", *differences(newest, tree)]
                )
            )
        self._host.history = History(state)

    async def _check(self) -> None:
        """Require that fsck finds no damage in the rows, the cached blocks and the bucket."""
        opened = self.session.volume
        self.session.durability.commit()
        cache = CacheDirectory(opened.state_dir.blocks, opened.state_dir.tmp)
        examined = Examined(opened.db, self._memory, opened.keyring, cache)
        report = await check_filesystem(examined, FsckOptions(), Report(), SystemClock())
        damage = [
            str(finding)
            for verdict in report.verdicts
            if verdict.severity is Severity.DAMAGE
            for finding in verdict.examples
        ]
        assert damage == [], damage

    # --- state of the bucket ---------------------------------------------------------------------

    def _links(self) -> Iterator[Changelog]:
        """Yield the changelogs of the chain, latest first."""
        for key in sorted(self._memory.objects, reverse=True):
            if changelog_codec.parse_key(key) is not None:
                yield changelog_codec.decode(key, self._memory.objects[key], self._keyring)

    def _end(self) -> Changelog | None:
        return next(self._links(), None)

    def _in_bucket(self) -> ModelFilesystem:
        """Return the tree that a restore from the bucket would produce."""
        for link in self._links():
            if link.kind is not Kind.FENCE:
                return self._cuts[link.epoch, link.txg]
        return ModelFilesystem()

    _events: ClassVar[dict[Event, Callable[["Machine", Happening], Awaitable[None]]]] = {
        Event.COMMIT: _commit,
        Event.SYNC: _sync,
        Event.UPLOAD: _upload,
        Event.FLUSH: _flush,
        Event.IMAGE: _image,
        Event.EVICT: _evict,
        Event.COMPACT: _compact,
        Event.READ: _read,
        Event.COPY_PAST: _copy_past,
        Event.KILL: _kill,
        Event.KILL_IN_IMAGE: _kill_in_image,
        Event.HICCUP: _flush_with_a_failed_request,
        Event.UNHEARD: _flush_with_a_lost_reply,
        Event.CANCEL: _cancel,
        Event.CANCEL_IMAGE: _cancel_image,
        Event.OUTAGE: _outage,
        Event.OUTAGE_IN_IMAGE: _outage_in_image,
        Event.REMOUNT: _remount,
        Event.KILL_IN_TAKEOVER: _kill_in_takeover,
        Event.MOVE: _move,
    }


class CancelAfter(trio.abc.Instrument):
    """A trio instrument that cancels a scope after a number of scheduler steps."""

    def __init__(self, steps: int, scope: trio.CancelScope) -> None:
        self._left = steps
        self._scope = scope

    @override
    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count one scheduler step; cancel the scope at the chosen step."""
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()


class _CommitNotes:
    """A recorder of commits, because operations before a commit must survive a kill."""

    def __init__(self, recorder: Recorder, history: History) -> None:
        self._recorder = recorder
        self._history = history

    def group_opened(self) -> None:
        """Forward the call. The operations of an open commit group may still be lost."""
        self._recorder.group_opened()

    def group_committing(self) -> None:
        """Record that all operations so far survive a kill."""
        self._recorder.group_committing()
        self._history.note_commit()


async def make_template(home: Path) -> MemoryStore:
    """Return a store with an empty filesystem."""
    store = MemoryStore()
    wanted = NewFilesystem("model", BLOCK_BYTES, 4096, None)
    await make_filesystem(store, wanted, home, SystemClock())
    return store
