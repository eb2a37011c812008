"""Tests of notifications to the kernel while a session ends."""

import contextlib
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from typing_extensions import override

from s3fs_meta.fs.write_gate import Invalidations
from s3fs_meta.fuse import kernel_cache, kernel_session
from s3fs_meta.fuse.convert import Converter
from s3fs_meta.fuse.notifications import Notifications, Stop
from s3fs_meta.fuse.operations import Operations
from s3fs_meta.model import ROOT_INO
from tests.faults import raising
from tests.fuse.conftest import no_free_thread, opened, until_ready
from tests.polling import WAIT_S_MAX, until


class Unanswered(Operations):
    """Handlers that never answer a request to create a FIFO."""

    waits = False

    @override
    async def mknod(self, *_arguments: Any) -> Any:
        """Wait until the session is cancelled."""
        self.waits = True
        await trio.sleep_forever()


@contextlib.contextmanager
def blocked_thread(notifications: Notifications, until_set: threading.Event) -> Iterator[None]:
    """Let a thread send a notification that the kernel blocks until the event is set."""
    begun = threading.Event()

    def send() -> None:
        with notifications.counted():
            begun.set()
            until_set.wait(WAIT_S_MAX)

    thread = threading.Thread(target=send)
    thread.start()
    assert begun.wait(WAIT_S_MAX)
    try:
        yield
    finally:
        until_set.set()
        thread.join(WAIT_S_MAX)


async def test_stop_waits_for_a_notification_that_the_abort_unblocks() -> None:
    notifications, aborted = Notifications(), threading.Event()
    with blocked_thread(notifications, aborted):
        assert await notifications.stop(aborted.set, running_s=0.01) is Stop.ABORTED


async def test_notification_that_stays_blocked_is_reported() -> None:
    """The blocked notification still uses the session, which must then not be freed."""
    notifications = Notifications()
    with blocked_thread(notifications, threading.Event()):
        outcome = await notifications.stop(lambda: None, running_s=0.01, blocked_s=0.01)
    assert outcome is Stop.BLOCKED


def test_name_that_no_thread_can_invalidate_waits_for_the_next_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loss of a commit group must be handled completely even if no thread can be started."""
    notifications = Notifications()
    sent: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    monkeypatch.setattr(
        "s3fs_meta.fuse.notifications.invalidate_name", lambda _parent, name: sent.put(name)
    )
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
        notifications.put(ROOT_INO, b"one")
    notifications.put(ROOT_INO, b"two")

    assert [sent.get(timeout=WAIT_S_MAX) for _ in range(2)] == [b"one", b"two"]


async def test_notification_is_refused_until_the_next_session() -> None:
    notifications = Notifications()
    assert await notifications.stop(lambda: None) is Stop.QUIET
    with pytest.raises(OSError, match="the session is being closed"), notifications.counted():
        raise AssertionError("not reached")

    notifications.resume()

    with notifications.counted():
        pass


def is_a_thread_blocked() -> bool:
    """Return whether a thread of this process waits in the kernel for the lock of a directory."""
    blocked = 0
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # A thread that has ended has no stack.
            blocked += (
                "fuse_reverse_inval_entry" in Path(f"/proc/self/task/{thread}/stack").read_text()
            )
    return blocked > 0


@pytest.mark.mount
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can read kernel stacks")
async def test_blocked_notification_ends_before_the_session_is_freed(
    tmp_path: Path, mountpoint: Path
) -> None:
    """The kernel blocks a notification about a directory in which a program creates a name."""
    command = ["mkfifo", str(mountpoint / "fifo")]
    create = partial(subprocess.run, command, check=False, timeout=WAIT_S_MAX, capture_output=True)
    async with opened(tmp_path) as handlers, trio.open_nursery() as programs:
        unanswered = Unanswered(handlers.fs, Converter(handlers.fs.block_bytes))
        async with trio.open_nursery() as nursery:
            await nursery.start(until_ready, unanswered, mountpoint)
            programs.start_soon(trio.to_thread.run_sync, create)
            await until(lambda: unanswered.waits)
            kernel_cache.changed(Invalidations([(ROOT_INO, b"name")], []))
            await until(is_a_thread_blocked)
            with no_free_thread(), trio.CancelScope(shield=True):
                nursery.cancel_scope.cancel()
                await until(lambda: not is_a_thread_blocked())
        assert not is_a_thread_blocked()
        assert kernel_session.device_number(str(mountpoint)) is None
