"""The behaviour of a mount while the machine allows no more threads."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from typing_extensions import override

from s3fs_meta.background_task import exit_of, in_thread, lacks_thread
from s3fs_meta.cache.crash_safety.quick_thread import QuickThread
from s3fs_meta.errors import DatabaseFullError, ThreadShortageError, TransientStoreError
from s3fs_meta.limits import THREAD_PAUSE_S
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables.cached_blocks import unsynced_tails
from s3fs_meta.model import ObjectKey
from s3fs_meta.mount_state import MountState
from s3fs_meta.objects.local import LocalStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.replay import Replayer
from s3fs_meta.sync.kernel import NoKernel, SwitchChanges
from s3fs_meta.sync.volume import OpenOptions
from tests.faults import REFUSED, no_threads, raising
from tests.sync.conftest import (
    Power,
    location_of,
    power,
    read_file,
    remove_file,
    ship,
    unmount,
    write_file,
)
from tests.sync.follower.following import FOLLOWS, READS

__all__ = ["power"]


async def test_refused_thread_is_reported_with_the_limit_that_the_user_can_raise() -> None:
    with no_threads(), pytest.raises(ThreadShortageError, match="ulimit -u"):
        await in_thread(print)


async def test_other_errors_of_a_thread_are_raised_unchanged() -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        await in_thread(raising(RuntimeError("a bug")))


async def test_opening_without_threads_names_the_limit_that_the_user_can_raise(
    power: Power,
) -> None:
    with no_threads(), pytest.raises(ThreadShortageError, match="ulimit -u"):
        async with power.session("a", tasks=False):
            pass


async def _group(*errors: Exception) -> Exception:
    """Return the exception group that a nursery raises if its tasks raise the given errors."""

    async def fail(error: Exception) -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()
        raise error

    try:
        async with trio.open_nursery() as nursery:
            for error in errors:
                nursery.start_soon(fail, error)
    except Exception as exc:  # noqa: BLE001 - returned
        return exc
    raise AssertionError("no task failed")


async def test_group_of_errors_counts_as_a_shortage_only_without_other_errors() -> None:
    assert lacks_thread(await _group(REFUSED, ThreadShortageError()))
    assert not lacks_thread(await _group(REFUSED, RuntimeError("a bug")))


@pytest.mark.parametrize("failing", ["", "call", "meanwhile"])
async def test_quick_call_runs_on_the_event_loop_if_no_thread_can_be_started(
    failing: str,
) -> None:
    """The functions have the same order and the same errors as in a thread."""
    order: list[str] = []

    def noting(name: str) -> Callable[[], None]:
        def note() -> None:
            order.append(name)
            if name == failing:
                raise InterruptedError

        return note

    words = {"meanwhile": noting("meanwhile"), "afterwards": noting("afterwards")}
    with no_threads(), pytest.raises(InterruptedError) if failing else contextlib.nullcontext():
        await QuickThread().run(noting("call"), **words)

    assert order == ["call", "meanwhile", *([] if failing else ["afterwards"])]


async def test_background_task_continues_after_a_pause_without_making_the_mount_read_only(
    power: Power, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with power.session("a", tasks=False) as session:
        outcomes = [REFUSED, await _group(REFUSED), None]

        async def task() -> None:
            await trio.lowlevel.checkpoint()
            outcome = outcomes.pop(0)
            if outcome is not None:
                raise outcome

        before_s = trio.current_time()
        await session.supervise("reading", task)

        assert outcomes == []
        assert trio.current_time() - before_s == 2 * THREAD_PAUSE_S
        assert session.status.state is MountState.SERVING
    assert "'reading' pauses for 5 s: no thread can be started" in caplog.text


async def test_fsync_without_threads_makes_the_file_durable(
    power: Power, caplog: pytest.LogCaptureFixture
) -> None:
    """Programs may call fsync thousands of times, so not every call is logged."""
    async with power.session("a", tasks=False) as session:
        with no_threads():
            for number in range(20):
                ino = write_file(session, b"content %d" % number)
                await session.durability.sync_file(ino)

        assert session.status.state is MountState.SERVING
        assert unsynced_tails(session.db) == []
    assert 1 <= caplog.text.count("a sync delays all requests: no thread can be started") <= 2


async def test_upload_without_threads_fails_and_succeeds_later(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"content")
        with no_threads(), pytest.raises(ThreadShortageError):
            await session.flush()
        with no_threads():
            [batch] = [await session.uploader.sealer.next_batch(0.0)]
            await session.uploader.acquire(batch)
            await session.uploader.ship_and_release(batch)
        assert "no thread can be started" in session.uploader.last_error

        assert session.status.state is MountState.SERVING
        await unmount(session)
    async with power.session("b", tasks=False) as session:
        with no_threads(), pytest.raises(ThreadShortageError):
            await read_file(session, ino)
        assert await read_file(session, ino) == b"content"


async def test_unmount_without_threads_keeps_all_changes_in_a_clean_local_state(
    power: Power,
) -> None:
    """The next mount need not recover from a crash, and uploads the changes."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"content")
        with no_threads():
            with pytest.raises(ThreadShortageError):
                await session.flush_at_end()
            await session.close()
    async with power.session("a", tasks=False) as session:
        assert not session.volume.crashed
        assert await read_file(session, ino) == b"content"
        await unmount(session)


async def test_database_copy_of_a_failed_image_is_removed_without_threads(power: Power) -> None:
    """No later task would remove it from the disk of the mount."""
    refused = contextlib.ExitStack()

    def refuse(step: str) -> None:
        if step == "image copied":
            refused.enter_context(no_threads())

    async with power.session("a", hook=refuse, tasks=False) as session:
        write_file(session, b"content")
        with refused, pytest.raises(ThreadShortageError):
            await session.make_image()
        assert list(session.volume.state_dir.tmp.iterdir()) == []
        await unmount(session)


async def test_child_process_is_waited_for_without_a_thread() -> None:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})  # noqa: ASYNC221 - returns immediately
    with no_threads():
        try:
            assert await exit_of(pid, 0.05) is None
        finally:
            os.kill(pid, signal.SIGKILL)
        assert await exit_of(pid, 10.0) == signal.SIGKILL


async def test_files_of_evicted_blocks_are_removed_without_threads(power: Power) -> None:
    """Their rows are deleted already, so no later task would remove the files."""
    async with power.session("a", tasks=False) as session:
        located = location_of(session, write_file(session, b"content" * 1000))
        await session.flush()
        with no_threads():
            dropped = await session.cache.evictor.drop([located.block])

        assert dropped.blocks == 1
        assert list(session.files.numbers()) == []
        await unmount(session)


class _Kernel(NoKernel):
    """A kernel to which the first notifications after a switch cannot be sent."""

    def __init__(self) -> None:
        self._failures = [REFUSED]
        self.dropped: list[SwitchChanges | None] = []

    @override
    async def after_switch(self, changes: SwitchChanges | None) -> None:
        await trio.lowlevel.checkpoint()
        if self._failures:
            raise self._failures.pop()
        self.dropped.append(changes)


async def test_follower_repeats_the_end_of_a_switch_for_which_no_thread_could_be_started(
    power: Power,
) -> None:
    """Otherwise the kernel could return old content for the whole mount."""
    kernel = _Kernel()
    async with power.session("a", tasks=False) as writer:
        first = write_file(writer, b"first")
        await ship(writer)
        async with power.session(
            "b", options=READS, session_options=FOLLOWS, tasks=False, kernel=kernel
        ) as session:
            follower = session.follower
            assert follower is not None
            await read_file(session, first)
            remove_file(writer, first)
            txg = await ship(writer)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await follower.poll_once()
            assert follower.link.txg == txg
            assert kernel.dropped == []

            for _ in range(2):
                await follower.poll_once()
            assert kernel.dropped == [None]
            assert list(session.files.numbers()) == []


async def test_failed_txg_is_undone_without_threads(power: Power) -> None:
    """The second application of a txg to its own rows would damage them."""
    async with power.session("a", tasks=False) as writer:
        write_file(writer, b"first")
        await ship(writer)
        async with power.session(
            "b", options=READS, session_options=FOLLOWS, tasks=False
        ) as session:
            write_file(writer, b"second")
            txg = await ship(writer)
            volume, before = session.volume, session.db.counters.inodes
            fetched = await chain.fetch(volume.store, volume.keyring, volume.uuid, txg)
            with contextlib.ExitStack() as refused:

                def hear(_changeset: bytes) -> None:
                    refused.enter_context(no_threads())
                    raise InterruptedError

                with contextlib.closing(
                    Database.open(session.db.path, session.db.pragmas)
                ) as applier:
                    replayer = Replayer(
                        volume.store, volume.keyring, volume.uuid, applier, heard=hear
                    )
                    with pytest.raises(InterruptedError):
                        await replayer.apply(fetched)
                    assert not applier.in_group
                    assert applier.counters.inodes == before


async def test_opening_that_fails_without_threads_reports_its_own_error(power: Power) -> None:
    with contextlib.ExitStack() as refused:

        def fail(step: str) -> None:
            if step == "lease taken":
                refused.enter_context(no_threads())
                raise DatabaseFullError("full")

        with pytest.raises(DatabaseFullError):
            async with power.session("a", options=OpenOptions(hook=fail)):
                pass

    # The failed opening has released its lock.
    async with power.session("a", tasks=False) as session:
        await unmount(session)


async def test_store_requests_are_repeated_until_a_thread_can_be_started(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    key = ObjectKey("pack/one")
    with no_threads(), pytest.raises(TransientStoreError, match="no thread can be started"):
        await store.put(key, b"data")

    await store.put(key, b"data")
    assert (await store.get(key, 4)).data == b"data"
    await store.close()
