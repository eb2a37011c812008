"""The steps of one mount, from opening the filesystem to closing it.

    wait for an earlier mount → open → recover → control socket → detach the mount of a killed
    daemon → background tasks → serve → (unmounted) → upload remaining changes → release → close

Owns: the order of these steps, and the control handlers that need several parts of the mount.
Does not know: command-line arguments, terminals, forks.
Design: docs/design/architecture.md, "The life of a mount".
"""

import contextlib
import logging
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from s3fs_meta import memory_allocator
from s3fs_meta.background_task import background_task, in_thread
from s3fs_meta.clock import SystemClock
from s3fs_meta.console import passphrase_source
from s3fs_meta.console.boundary import text_of
from s3fs_meta.console.ui import Front
from s3fs_meta.control.plain_call import no_report
from s3fs_meta.control.protocol import Handler, Message, Report
from s3fs_meta.control.server import ControlServer
from s3fs_meta.errors import (
    AbsentDirectoryError,
    ControlError,
    HeldError,
    S3fsError,
    StoreUnavailableError,
)
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fuse import kernel_cache, request_times
from s3fs_meta.fuse import kernel_session as fuse
from s3fs_meta.fuse.collection.write_back import WriteBack
from s3fs_meta.fuse.convert import Converter
from s3fs_meta.fuse.kernel_cache import KernelCache
from s3fs_meta.fuse.operations import Operations
from s3fs_meta.limits import CLOSE_S_MAX
from s3fs_meta.mount import process
from s3fs_meta.mount.acquisition import may_be_offline, open_for_mount, why_offline
from s3fs_meta.mount.existing import dead_mount, mount_holders, mount_table, targets
from s3fs_meta.mount.existing.mount_table import Mounted
from s3fs_meta.mount.handlers import requesters
from s3fs_meta.mount.handlers.cache_handlers import CacheHandlers
from s3fs_meta.mount.handlers.change_requests import ChangeRequests
from s3fs_meta.mount.handlers.history_handlers import HistoryHandlers
from s3fs_meta.mount.handlers.keep_handlers import KeepHandlers
from s3fs_meta.mount.handlers.remount import RemountHandlers
from s3fs_meta.mount.handlers.request_kinds import KINDS
from s3fs_meta.mount.handlers.tree_handlers import TreeHandlers
from s3fs_meta.mount.handlers.upload_handlers import NOT_UPLOADED, EndWatchers, UploadHandlers
from s3fs_meta.mount.kernel_side import KernelSide
from s3fs_meta.mount.libfuse_messages import quoting_libfuse
from s3fs_meta.mount.limits import LOCK_WAIT_S, REQUESTERS_S_MAX
from s3fs_meta.mount.past_points import past_of
from s3fs_meta.mount.plan import MountPlan
from s3fs_meta.mount.requests import control_api
from s3fs_meta.mount.requests.upload_watch import UploadWatch
from s3fs_meta.mount.statistics import health
from s3fs_meta.mount.statistics.figures import figures, requests_today
from s3fs_meta.mount.statistics.metrics_option import listening
from s3fs_meta.mount.stores import naming_store, opened_store, with_options
from s3fs_meta.mount.supervisor import Supervisor, supervised
from s3fs_meta.mount_errors import EarlierMountInUseError, NotMountedError
from s3fs_meta.mount_state import MountState
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.throttle import Throttles, throttles_of
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.history.points_in_time import described
from s3fs_meta.sync.host_state.request_log import RequestLog
from s3fs_meta.sync.host_state.state_dir import (
    LockWatch,
    StateDir,
    remove_stale_snapshot,
    remove_stale_snapshots,
)
from s3fs_meta.sync.known_points import KnownPoints
from s3fs_meta.sync.opening.local_state_choice import advising
from s3fs_meta.sync.opening.offline import open_offline
from s3fs_meta.sync.session import Session

if TYPE_CHECKING:
    from s3fs_meta.mount.statistics.metrics_server import MetricsServer

_log = logging.getLogger(__name__)

LAST_WORDS_S_MAX: Final = 5.0  # maximum time to wait for clients to read the last response
OPTIONAL_STEP_S_MAX: Final = 5.0  # time limit of each optional step of the shutdown


class Sides(NamedTuple):
    """The parts of a mount that are created before the session of the mount."""

    kernel: KernelSide
    throttles: Throttles
    metrics: "MetricsServer | None"  # None if the option metrics= is not set
    signals: process.Signals


async def run_mount(plan: MountPlan, front: Front) -> None:
    """Mount the filesystem, serve it until the unmount, and close it.

    Raises S3fsError or KeyboardInterrupt if the filesystem could not be mounted.
    """
    async with process.handled_signals() as signals:
        await _run(plan, front, signals)


async def _run(plan: MountPlan, front: Front, signals: process.Signals) -> None:
    memory_allocator.bound_free_memory()
    process.raise_open_files()
    process.explain_aborts()
    front = supervised(front)
    await in_thread(targets.remove_stale_notes)
    await _wait_for_earlier(plan, front)
    if plan.options.at is not None:
        present = targets.of_url(plan.place.url, plan.options.cachedir)
        await in_thread(remove_stale_snapshots, present.state, plan.place.state)
    # With at=, the state directory is temporary, so count requests in the permanent directory.
    counts = targets.of_url(plan.place.url, plan.options.cachedir).state
    throttles = throttles_of(plan.options)
    try:
        async with (
            listening(plan.options.metrics, str(plan.mountpoint)) as metrics,
            opened_store(
                plan.place.url,
                plan.s3,
                may_be_absent=may_be_offline(plan),
                notify=front.notice,
                counts=counts,
                charge=throttles.charge,
            ) as store,
        ):
            sides = Sides(KernelSide(), throttles, metrics, signals)
            session = await _open(plan, store, front, sides)
            requests = RequestLog(counts, store.meter, lambda: session.db.counters.stored_bytes)
            try:
                await Mount(plan, session, front, sides, requests).run()
            finally:
                with trio.move_on_after(CLOSE_S_MAX, shield=True):
                    await session.close()
    except (S3fsError, OSError) as exc:
        if isinstance(exc, AbsentDirectoryError):
            _advise_read_only(plan, front)
        if plan.options.at is not None:
            remove_stale_snapshot(plan.place.state)
        raise


async def _wait_for_earlier(plan: MountPlan, front: Front) -> None:
    """Wait until an earlier mount of the filesystem has ended.

    Raises:
        HeldError: the filesystem is already mounted.
        SettingsError: another filesystem is mounted on the mountpoint.
    """
    state_dir = StateDir(plan.place.state)
    if state_dir.is_locked_by_other:
        present = await _present_mount(plan)
        if present is not None:
            await _wait_for_end(present, plan, front)
        elif state_dir.is_locked_by_other:
            return  # fsck or an exiting process holds the lock; open_filesystem waits for it
    await dead_mount.is_left(plan.mountpoint, plan.place.url)


async def _present_mount(plan: MountPlan) -> dict[str, Any] | None:
    """Return the statistics of the mount that uses the state directory; None without an answer.

    A killed daemon holds the lock until its process has exited. If its mount is still on the
    mountpoint, wait for the exit.
    """
    with LockWatch(plan.place.state) as watch:
        try:
            return await control_api.request_status(plan.place)
        except (NotMountedError, ControlError):
            if mount_table.find(str(plan.mountpoint)) is not None:
                with trio.move_on_after(LOCK_WAIT_S):
                    await watch.wait_until_free()
    return None


async def _wait_for_end(present: Mapping[str, Any], plan: MountPlan, front: Front) -> None:
    """Wait until an ending mount has ended. Raises the same errors as ``_wait_for_earlier``."""
    if present["state"] == control_api.DETACHED:
        used = await control_api.used_by(plan.place)
        if used:
            raise EarlierMountInUseError(used, present["mountpoint"])
    elif present["state"] != control_api.ENDING:
        raise HeldError(f"the filesystem is already mounted on {present['mountpoint']}")
    front.notice("waiting for an earlier mount to finish its upload")
    async with UploadWatch(plan.place, front).running():
        await control_api.wait_finished(plan.place, front, trio.Event())


async def _open(plan: MountPlan, store: ObjectStore, front: Front, sides: Sides) -> Session:
    """Open the filesystem of the mount, and recover its state after a crash."""
    file, blocking = plan.options.passphrase_file, sides.signals.blocking
    secret = passphrase_source.secret(file, front.ask, blocking)
    clock = SystemClock()
    offline = await why_offline(plan, store)
    if offline:
        state_dir = StateDir(plan.place.state)
        with advising(state_dir):
            volume = await open_offline(store, state_dir, secret, clock, plan.open, offline)
    else:
        with _advising(plan, front):
            volume = await open_for_mount(plan, store, secret, clock, front)
    for notice in (*volume.notices, *plan.warnings):
        _log.warning("%s", notice)
        front.notice(with_options(notice, plan.place.url, plan.s3, plan.place.state))
    session = Session(volume, plan.options, clock, kernel=sides.kernel, throttles=sides.throttles)
    try:
        with advising(volume.state_dir):
            session.recover()
        await _learn_last_image(session)
    except BaseException:
        with trio.move_on_after(CLOSE_S_MAX, shield=True):
            await session.close()
        raise
    return session


@contextlib.contextmanager
def _advising(plan: MountPlan, front: Front) -> Iterator[None]:
    """Suggest a read-only mount if the bucket is unreachable and local state exists."""
    try:
        yield
    except StoreUnavailableError:
        _advise_read_only(plan, front)
        raise


def _advise_read_only(plan: MountPlan, front: Front) -> None:
    if not plan.open.read_only and StateDir(plan.place.state).database.exists():
        front.notice("to read the local state of this host without the bucket, mount it with -o ro")


async def _learn_last_image(session: Session) -> None:
    """Read the creation time of the newest image for ``status``."""
    volume = session.volume
    head = volume.keeper.lease.head
    if head is None or volume.offline:
        return
    with trio.move_on_after(OPTIONAL_STEP_S_MAX), contextlib.suppress(S3fsError):
        manifest = await image_head.load_manifest(volume.store, volume.keyring, head.manifest)
        session.imager.note_last(manifest.created_ns)


class Mount:
    """A mount that serves requests until the unmount, then uploads the remaining changes."""

    def __init__(
        self,
        plan: MountPlan,
        session: Session,
        front: Front,
        sides: Sides,
        request_log: RequestLog,
    ) -> None:
        self._plan = plan
        self._session = session
        self._front = front
        self._ended = trio.Event()
        self._keeps = trio.Event()  # stops the last upload; unsent changes stay on this host
        self._requests: Mapping[str, int] = {}
        self._outcome: dict[str, Any] = {}
        self._ending = False
        self._signals = sides.signals
        self._metrics = sides.metrics
        self._kernel = kernel = sides.kernel
        self._watchers = EndWatchers()
        self._request_log = request_log
        self._points = KnownPoints(
            request_log.state,
            session.volume.uuid,
            lambda: session.volume.position.link,
            lambda: session.reclaimer.kept_names,
        )
        self._note: Path | None = None
        self._mounted: Mounted | None = None
        self._filesystem = Filesystem(
            session.db,
            session.cache,
            session.status,
            SystemClock(),
            plan.options,
            sync_file=session.sync_file,
            state_of=session.state_of,
            groups_of=requesters.supplementary_groups,
            notices=kernel_cache.NOTICES,
        )
        self._trees = TreeHandlers(
            self._filesystem, check_remount=self._is_kernel_read_only, collect=kernel.collect
        )
        self._remounts = RemountHandlers(plan.options, session)
        self._cache = CacheHandlers(plan.options, session)
        self._write_back: WriteBack | None = None
        self._changes = ChangeRequests()
        self._uploads = UploadHandlers(session, self._changes, kernel.why_uncollected)
        self._supervisor = Supervisor(self._figures)
        self._accepting = trio.Event()
        self._control = ControlServer(plan.place.state, self._handlers(), kinds=KINDS)

    async def run(self) -> None:
        """Serve until the filesystem is unmounted, then upload the remaining changes."""
        session = self._session
        follower = session.follower
        converter = Converter(
            self._filesystem.block_bytes,
            overrides=self._plan.overrides,
            has_generations=follower is None,
        )
        past = past_of(self._plan, session, self._filesystem)
        self._trees.serve_past(past.sources)
        operations = Operations(
            self._filesystem, converter, past=past.tree, writeback=follower is None
        )
        self._requests = operations.requests
        self._write_back = operations.write_back
        self._kernel.serve(operations.write_back, KernelCache(converter, self._filesystem))
        async with trio.open_nursery() as nursery:
            await nursery.start(self._control.serve)
            if self._metrics is not None:
                nursery.start_soon(self._metrics.serve, lambda: self._on_status({}, no_report))
            await self._cache.load()
            await self._detach_dead_mount()
            nursery.start_soon(session.run)
            nursery.start_soon(session.supervise, "pins", self._cache.run)
            nursery.start_soon(session.supervise, "request log", self._request_log.run)
            if self._plan.options.at is None:
                # With at=, a repair may have abandoned the txg that the mount shows.
                nursery.start_soon(session.supervise, "known points in time", self._points.run)
            if past.run is not None:
                nursery.start_soon(session.supervise, "points in time", past.run)
            nursery.start_soon(session.supervise, "the service manager", self._supervisor.run)
            # Tree removal ends before the last upload, so that the upload contains its changes.
            async with background_task(self._remove):
                with quoting_libfuse(StateDir(self._plan.place.state).log):
                    await fuse.serve(
                        operations,
                        self._plan.mountpoint,
                        self._plan.fuse,
                        on_ready=self._ready,
                        on_signal=self._supervisor.ending,
                    )
            await self._end()
            await self._request_log.save()
            if self._plan.options.at is None:
                await self._points.save()
            nursery.cancel_scope.cancel()

    async def _remove(self) -> None:
        """Once the filesystem is mounted, run ``Filesystem.run``: tree removal and read-ahead."""
        await self._accepting.wait()
        await self._session.supervise("removal and read-ahead", self._filesystem.run)

    async def _detach_dead_mount(self) -> None:
        """Detach the mount of a killed daemon from the mountpoint.

        Between this call and the new mount, programs see the directory underneath. So call this as
        late as possible.
        """
        mountpoint = self._plan.mountpoint
        if await dead_mount.is_left(mountpoint, self._plan.place.url):
            self._front.notice(f"detaching {mountpoint}, whose daemon was killed")
            await fuse.detach(mountpoint)

    def _ready(self) -> None:
        """Start accepting changes; notify the parent process and systemd. Never yields."""
        self._signals.end_of_start()
        self._session.start()
        self._accepting.set()
        capacity_bytes = self._plan.options.capacity_bytes
        if capacity_bytes is not None and not self._plan.options.read_only:
            self._filesystem.set_capacity(capacity_bytes)
        mounted = mount_table.find(str(self._plan.mountpoint))
        if mounted is not None:  # None if another process has unmounted the filesystem already
            self._mounted = mounted
            self._is_kernel_read_only()
            self._note = targets.write_note(self._plan.place, mounted, self._plan.command)
        process.exempt_objects()
        _log.info("serving %s on %s", self._plan.place.url, self._plan.mountpoint)
        self._supervisor.ready()
        self._report_state()
        self._front.ready()

    def _is_kernel_read_only(self) -> bool:
        """Return whether the mount table lists the mount as read-only, and record the result."""
        return self._mounted is not None and self._remounts.refresh(self._mounted)

    def _report_state(self) -> None:
        """Report the mountpoint, and the txg that the mount shows."""
        link = self._session.volume.position.link
        plan = self._plan
        self._front.notice(f"{plan.place.url} is mounted on {plan.mountpoint}: {described(link)}")

    # --- stop the mount ------------------------------------------------------------------------

    async def _end(self) -> None:
        """Upload the remaining changes; a signal stops the upload, and the local state is kept."""
        self._ending = True
        self._supervisor.ending()
        self._outcome = {"complete": False, "why": "it was interrupted"}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on_signal, nursery.cancel_scope)
            nursery.start_soon(self._cancel_when_kept, nursery.cancel_scope)
            await self._changes.end()  # the last upload must contain all changes
            self._outcome = await self.last_flush()
            nursery.cancel_scope.cancel()
        if not self._outcome["complete"]:
            _log.warning(
                "not all changes were uploaded; the next mount uploads the rest: %s",
                self._outcome["why"],
            )
        if self._note is not None:
            targets.end_note(self._note, self._outcome)
        self._ended.set()
        await self._control.quiet(LAST_WORDS_S_MAX)

    async def _cancel_when_kept(self, scope: trio.CancelScope) -> None:
        """Stop the last upload when a client asks to keep the changes on this host."""
        await self._keeps.wait()
        self._outcome["why"] = health.away(self._figures()) or "umount --force stopped the upload"
        scope.cancel()

    async def last_flush(self) -> dict[str, Any]:
        """Upload all changes; return the outcome of the mount."""
        if self._uploads.uploads_nothing:
            return {"complete": True, "why": ""}
        if self._session.status.read_only:
            return {"complete": False, "why": NOT_UPLOADED, "kind": control_api.READ_ONLY}
        try:
            place = self._plan.place
            with naming_store(place.url, self._plan.s3, place.state):
                await self._session.flush_at_end(self._watchers.progress)
        except (S3fsError, OSError) as exc:
            return {"complete": False, "why": text_of(exc), "kind": type(exc).__name__}
        if not self._session.is_everything_shipped:
            return {"complete": False, "why": "the filesystem was changed during the last upload"}
        return {"complete": True, "why": ""}

    # --- answer control requests ---------------------------------------------------------------

    def _handlers(self) -> dict[str, Handler]:
        changing = {
            control_api.RECLAIM: self._uploads.on_reclaim,
            control_api.PROMOTE: self._on_promote,
            **self._trees.handlers(),
            **self._remounts.handlers(),
            **self._cache.handlers(),
            **KeepHandlers(self._session, self._save_points).handlers(),
        }
        return {
            control_api.STATUS: self._on_status,
            control_api.REQUESTERS: self._on_requesters,
            control_api.FINISHED: self._on_finished,
            **self._uploads.handlers(),
            control_api.END: self._on_end,
            control_api.COUNTS: self._on_counts,
            **HistoryHandlers(self._session).handlers(),
            **self._changes.guarded(changing),
        }

    async def _save_points(self) -> None:
        """Save the known points in time, unless the mount shows a past point in time."""
        if self._plan.options.at is None:
            await self._points.save()

    def _figures(self) -> dict[str, Any]:
        """Return the statistics that are available without waiting. Never yields to other tasks."""
        plan = self._plan
        found = figures(self._session, plan)
        if self._write_back is not None:
            found["kernel"] = self._write_back.figures()
        if self._ending:
            found["state"] = control_api.ENDING
        return found

    async def _on_status(self, _arguments: Message, _report: Report) -> Message:
        found = self._figures()
        found["extension"] = "used"  # constant value, for scripts that still query this statistic
        found["requests"] = dict(self._requests)
        found["today"] = requests_today(self._request_log)
        found["metrics"] = None if self._metrics is None else self._metrics.address
        found["latency"] = request_times.figures()
        found["trees"] = self._trees.figures()
        found["kernel_read_only"] = self._is_kernel_read_only()
        found["holders"] = []
        if self._ending:
            return found
        if self._mounted is not None and not mount_holders.is_mounted_here(self._mounted):
            holders = await in_thread(mount_holders.find, self._mounted)
            found["holders"] = [one._asdict() for one in holders]
            found["state"] = control_api.DETACHED
        return found

    async def _on_requesters(self, arguments: Message, _report: Report) -> Message:
        return await requesters.find(min(float(arguments["within_s"]), REQUESTERS_S_MAX))

    async def _on_end(self, arguments: Message, _report: Report) -> Message:
        """Refuse further changes and stop the mount, even if the mountpoint is in use.

        Raises:
            ControlError: the mount is still starting; nothing was changed.
        """
        if not self._accepting.is_set():
            raise ControlError("ControlError", "the mount is still starting; try again later")
        if arguments.get("keep"):
            self._keeps.set()
        if not self._ending:
            assert self._write_back is not None, "the mount must be serving"
            await self._write_back.collect()
            self._session.status.enter(MountState.STOPPING, "umount --force")
            fuse.end()
        return {}

    async def _on_counts(self, _arguments: Message, _report: Report) -> Message:
        await self._request_log.save()
        return {"state": str(self._request_log.state)}

    async def _on_promote(self, arguments: Message, _report: Report) -> Message:
        session = self._session
        link = await session.promote(
            force=bool(arguments.get("takeover")), unsafe=self._plan.open.unsafe_single_writer
        )
        self._filesystem.adopt_orphans()
        return {"txg": link.txg, "epoch": session.volume.keeper.epoch}

    async def _on_finished(self, _arguments: Message, report: Report) -> Message:
        report({})
        with self._watchers.added(report):
            await self._ended.wait()
        return self._outcome


async def _cancel_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            _log.warning("received %s: stopping the upload", signal.Signals(number).name)
            scope.cancel()
            return
