"""Tests of the loop in which pyfuse3's workers wait for requests, mostly without the scheduler.

A socket replaces /dev/fuse. ``work`` replaces the loop of pyfuse3 and has the same steps: take the
lock, wait, read a request, answer it. The real loop is tested in
tests/end_to_end/test_request_loop.py.
"""

import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pyfuse3
import pytest
import trio
import trio.lowlevel
import trio.testing

from s3fs_meta.fuse import request_loop
from s3fs_meta.fuse.request_loop import DirectTrio, Gate
from tests.polling import WAIT_S_MAX, until

Answer = Callable[[bytes], Awaitable[None]]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return a socket for the kernel and a socket for the daemon."""
    kernel, daemon = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with kernel, daemon:
        daemon.settimeout(0.001)  # A read without a request fails after 1 ms.
        yield kernel, daemon


async def work(direct: DirectTrio, daemon: socket.socket, answer: Answer) -> None:
    """Read and answer requests, as a worker of pyfuse3 does."""
    while True:
        async with direct.Lock():
            await direct.lowlevel.wait_readable(daemon.fileno())
        await answer(daemon.recv(100))


async def at_once(_request: bytes) -> None:
    """Answer a request without waiting."""


@pytest.fixture
async def nursery() -> AsyncIterator[trio.Nursery]:
    """Return a nursery whose tasks end with the test."""
    async with trio.open_nursery() as made:
        yield made
        made.cancel_scope.cancel()


async def test_every_request_is_answered_exactly_once(
    pair: tuple[socket.socket, socket.socket], nursery: trio.Nursery
) -> None:
    """Three workers answer each request once, in order."""
    kernel, daemon = pair
    answered: list[bytes] = []

    async def answer(request: bytes) -> None:
        answered.append(request)

    direct = DirectTrio()
    for _ in range(3):
        nursery.start_soon(work, direct, daemon, answer)
    sent = [b"%d" % number for number in range(500)]
    for request in sent:
        kernel.send(request)
        if request.endswith(b"7"):
            await trio.lowlevel.checkpoint()
    await until(lambda: len(answered) == len(sent))

    assert answered == sent


async def test_other_tasks_run_during_endless_requests(
    pair: tuple[socket.socket, socket.socket], nursery: trio.Nursery
) -> None:
    """Other tasks run even if the next request arrives before each reply is sent."""
    kernel, daemon = pair
    answered = 0

    async def answer(_request: bytes) -> None:
        nonlocal answered
        answered += 1
        kernel.send(b"next")

    nursery.start_soon(work, DirectTrio(), daemon, answer)
    kernel.send(b"first")
    with trio.fail_after(WAIT_S_MAX):
        for _ in range(50):
            before = answered
            await trio.sleep(0.001)
            while answered == before:  # noqa: ASYNC110 - the worker sets no event
                await trio.lowlevel.checkpoint()


async def test_delayed_reply_does_not_delay_the_next_request(
    pair: tuple[socket.socket, socket.socket], nursery: trio.Nursery
) -> None:
    """While the reply of one worker waits, another worker reads the next request."""
    kernel, daemon = pair
    slow, answered = trio.Event(), trio.Event()

    async def answer(request: bytes) -> None:
        if request == b"slow":
            await slow.wait()
        elif request == b"last":
            answered.set()

    direct = DirectTrio()
    for _ in range(2):
        nursery.start_soon(work, direct, daemon, answer)
    for request in (b"quick", b"quick", b"slow", b"quick"):
        kernel.send(request)
    await trio.testing.wait_all_tasks_blocked()
    kernel.send(b"last")

    with trio.fail_after(WAIT_S_MAX):
        await answered.wait()


@pytest.mark.parametrize("_attempt", range(8))  # The order of trio's tasks is random.
async def test_other_workers_do_not_poll_while_a_worker_handles_a_request(
    pair: tuple[socket.socket, socket.socket],
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
    _attempt: int,
) -> None:
    """If a worker polled, it would block the loop and delay the reply of another worker."""
    kernel, daemon = pair
    polls_s: list[float] = []
    while_slow_s: list[float] = []
    early_may_end, answered = trio.Event(), trio.Event()
    is_ready = Gate.is_ready

    def recorded(gate: Gate, wait_s: float) -> bool:
        polls_s.append(wait_s)
        return is_ready(gate, wait_s)

    async def answer(request: bytes) -> None:
        if request == b"early":
            await early_may_end.wait()
            polls_s.clear()
        elif request == b"slow":
            early_may_end.set()
            for _ in range(5):
                await trio.lowlevel.checkpoint()
            while_slow_s.extend(polls_s)
            answered.set()

    direct = DirectTrio()
    for _ in range(3):
        nursery.start_soon(work, direct, daemon, answer)
    with trio.fail_after(WAIT_S_MAX):
        kernel.send(b"early")
        await trio.testing.wait_all_tasks_blocked()
        monkeypatch.setattr(Gate, "is_ready", recorded)
        kernel.send(b"slow")
        await answered.wait()

    assert while_slow_s
    assert set(while_slow_s) == {0.0}


async def test_worker_waits_again_if_another_worker_took_the_request(
    pair: tuple[socket.socket, socket.socket], nursery: trio.Nursery
) -> None:
    kernel, daemon = pair
    answered = taken = 0

    async def answer(_request: bytes) -> None:
        nonlocal answered
        answered += 1

    async def take() -> None:
        """Take the request for which all workers were woken in random order."""
        nonlocal taken
        with daemon.dup() as other:
            other.setblocking(False)
            while True:
                await trio.lowlevel.wait_readable(other)
                with contextlib.suppress(BlockingIOError):
                    other.recv(100)
                    taken += 1

    nursery.start_soon(work, DirectTrio(), daemon, answer)
    nursery.start_soon(take)
    for _ in range(60):
        await trio.testing.wait_all_tasks_blocked()
        kernel.send(b"x")
    await trio.testing.wait_all_tasks_blocked()

    assert answered + taken == 60
    assert taken > 0


async def test_new_worker_replaces_a_cancelled_worker(
    pair: tuple[socket.socket, socket.socket], nursery: trio.Nursery
) -> None:
    kernel, daemon = pair
    answered = trio.Event()

    async def answer(_request: bytes) -> None:
        answered.set()

    direct, first = DirectTrio(), trio.CancelScope()

    async def cancelled() -> None:
        with first:
            await work(direct, daemon, at_once)

    nursery.start_soon(cancelled)
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(work, direct, daemon, answer)
    await trio.testing.wait_all_tasks_blocked()
    first.cancel()
    await trio.testing.wait_all_tasks_blocked()
    kernel.send(b"x")

    with trio.fail_after(WAIT_S_MAX):
        await answered.wait()


async def test_worker_that_wakes_without_a_request_ends_with_the_request_loop(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    kernel, daemon = pair

    async def wait(direct: DirectTrio) -> None:
        with contextlib.suppress(trio.ClosedResourceError):
            await direct.lowlevel.wait_readable(daemon.fileno())

    for _ in range(30):  # Each pass has another random order of trio's tasks.
        direct = DirectTrio()
        with trio.fail_after(WAIT_S_MAX), daemon.dup() as other:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, direct)
                await trio.testing.wait_all_tasks_blocked()
                kernel.send(b"x")
                await trio.lowlevel.wait_readable(other)
                daemon.recv(100)
                direct.lowlevel.notify_closing(daemon.fileno())


def test_pyfuse3_uses_the_trio_module_again_after_a_session() -> None:
    """The module ``trio`` in pyfuse3 is restored, so that the next session can replace it again."""
    with request_loop.direct():
        assert isinstance(vars(pyfuse3)["trio"], DirectTrio)
        assert vars(pyfuse3)["trio"].open_nursery is trio.open_nursery
        assert vars(pyfuse3)["trio"].lowlevel.current_task is trio.lowlevel.current_task
    assert vars(pyfuse3)["trio"] is trio
