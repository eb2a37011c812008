"""Short blocking calls in a thread, with a fast wake-up.

Owns: the pipe by which the thread wakes its caller. Does not know: what the call does.
Why: an fsync(2) makes one or two calls in a thread. ``trio.to_thread.run_sync`` takes
140 us per call on an idle machine: it wakes the event loop through trio's queue, acquires a limiter
and names the thread. This class takes 60 us: it uses the same cached threads, but the event
loop waits for a pipe.
Tasks: any number of callers on the event loop; each object runs one call at a time.
"""

import os
import threading
import weakref
from collections.abc import Callable

import trio

from s3fs_meta.background_task import ShortageLog, lacks_thread
from s3fs_meta.cache.files.open_blocks import NO_DESCRIPTOR_ERRNOS


class QuickThread:
    """Runs blocking calls in a thread, one at a time; the caller must hold a lock."""

    def __init__(self) -> None:
        """Create no pipe yet: the first ``run`` creates it, and most commands never call ``run``."""
        self._ends: tuple[int, int] | None = None
        self._is_busy = False
        self._shortage = ShortageLog()

    @trio.lowlevel.enable_ki_protection
    async def run(
        self,
        call: Callable[[], None],
        *,
        meanwhile: Callable[[], None] | None = None,
        afterwards: Callable[[], None] | None = None,
    ) -> None:
        """Run *call* in a thread, and *meanwhile* on the event loop; return when both have ended.

        Args:
            call: runs in the thread.
            meanwhile: runs on the event loop while *call* runs.
            afterwards: runs in the thread once *call* and *meanwhile* have succeeded. This
                saves one wake-up of the event loop compared with a second call of ``run``.

        A cancellation has no effect after the start, because a thread cannot be interrupted. trio
        delivers a KeyboardInterrupt to the main task even in a shielded scope. ``run`` raises it
        after *call* and *meanwhile* have ended, because the caller must hold its lock while the
        thread runs. If *call* or *meanwhile* raises an exception, ``run`` raises it after both
        functions have ended. If both functions raise, ``run`` raises the exception of the thread.
        If no thread can be started, or no pipe can be created for lack of file descriptors, all
        functions run on the event loop, so that an fsync succeeds.

        Always yields to other tasks.
        """
        assert not self._is_busy, "the caller must hold a lock that prevents concurrent calls"
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._ends is None and not self._make_pipe():
            await _run_here(call, meanwhile, afterwards)
            return
        assert self._ends is not None, "the pipe was created above"
        reader, writer = self._ends
        failures: list[BaseException] = []
        late: list[BaseException] = []
        meanwhile_ended = threading.Lock()
        meanwhile_ended.acquire()

        def work() -> None:
            call()
            if afterwards is not None:
                meanwhile_ended.acquire()
                if not late:
                    afterwards()

        if not _started(lambda: _catch(work, failures), lambda: os.write(writer, b"\0")):
            self._shortage.warn("a sync delays all requests")
            await _run_here(call, meanwhile, afterwards)
            return
        self._is_busy = True
        if meanwhile is not None:
            _catch(meanwhile, late)
        meanwhile_ended.release()
        with trio.CancelScope(shield=True):
            while True:
                try:
                    await trio.lowlevel.wait_readable(reader)
                    break
                except KeyboardInterrupt as exc:
                    late.append(exc)
        os.read(reader, 1)
        self._is_busy = False
        for failure in (*failures, *late):
            raise failure

    def _make_pipe(self) -> bool:
        """Create the pipe; return False if too many files are open."""
        try:
            self._ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as exc:
            if exc.errno not in NO_DESCRIPTOR_ERRNOS:
                raise
            self._shortage.warn("a sync delays all requests", exc.strerror)
            return False
        weakref.finalize(self, _close, *self._ends)
        return True


def _started(work: Callable[[], None], then: Callable[[], object]) -> bool:
    """Start *work*, followed by *then*, in a thread; return False if no thread can be started."""
    try:
        trio.lowlevel.start_thread_soon(work, lambda _result: then())
    except RuntimeError as exc:
        if not lacks_thread(exc):
            raise
        return False
    return True


async def _run_here(
    call: Callable[[], None],
    meanwhile: Callable[[], None] | None,
    afterwards: Callable[[], None] | None,
) -> None:
    """Run the functions of ``run`` on the event loop, one after another; then yield."""
    failures: list[BaseException] = []
    for each in (call, meanwhile):
        if each is not None:
            _catch(each, failures)
    if afterwards is not None and not failures:
        _catch(afterwards, failures)
    for failure in failures:
        raise failure
    await trio.lowlevel.cancel_shielded_checkpoint()


def _catch(call: Callable[[], None], failures: list[BaseException]) -> None:
    try:
        call()
    except BaseException as exc:  # noqa: ASYNC103, BLE001 - ``run`` raises it in the caller's task
        failures.append(exc)


def _close(*ends: int) -> None:
    for end in ends:
        os.close(end)
