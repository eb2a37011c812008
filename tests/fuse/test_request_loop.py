"""How pyfuse3's workers wait for requests: mostly without the scheduler, and still fair.

A socket stands for the descriptor, and ``work`` for pyfuse3's loop, whose order of steps it has:
pass the gate, wait, take a request, answer. The real loop is in
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
from s3fs_meta.fuse.request_loop import DirectTrio

Answer = Callable[[bytes], Awaitable[None]]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return the kernel's end and the daemon's end, on which a read would block."""
    kernel, daemon = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with kernel, daemon:
        daemon.settimeout(0.001)  # a worker that reads a missing request fails
        yield kernel, daemon


async def work(direct: DirectTrio, daemon: socket.socket, answer: Answer) -> None:
    """Take and answer requests, as pyfuse3's workers do."""
    while True:
        async with direct.Lock():
            await direct.lowlevel.wait_readable(daemon.fileno())
        await answer(daemon.recv(100))


async def at_once(_request: bytes) -> None:
    """Answer without waiting."""


@pytest.fixture
async def nursery() -> AsyncIterator[trio.Nursery]:
    """Return a nursery whose tasks end with the test."""
    async with trio.open_nursery() as made:
        yield made
        made.cancel_scope.cancel()


async def test_every_request_is_answered_once(
    pair: tuple[socket.socket, socket.socket], nursery: trio.Nursery
) -> None:
    """Every request is answered once, in order, by any worker."""
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
    with trio.fail_after(10):
        while len(answered) < len(sent):  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.001)

    assert answered == sent


async def test_other_tasks_run_while_requests_never_end(
    pair: tuple[socket.socket, socket.socket], nursery: trio.Nursery
) -> None:
    """The next request is there before the last one is answered, and still every task runs."""
    kernel, daemon = pair
    answered = 0

    async def answer(_request: bytes) -> None:
        nonlocal answered
        answered += 1
        kernel.send(b"next")

    nursery.start_soon(work, DirectTrio(), daemon, answer)
    kernel.send(b"first")
    with trio.fail_after(10):
        for _ in range(50):
            before = answered
            await trio.lowlevel.checkpoint()
            await trio.sleep(0.001)
            assert answered > before


async def test_another_worker_takes_over_while_one_waits(
    pair: tuple[socket.socket, socket.socket], nursery: trio.Nursery
) -> None:
    """A slow reply does not delay the next request."""
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

    with trio.fail_after(10):
        await answered.wait()


async def test_worker_woken_for_a_missing_request_waits_again(
    pair: tuple[socket.socket, socket.socket], nursery: trio.Nursery
) -> None:
    """A worker that is woken for a request taken by another one waits again."""
    kernel, daemon = pair
    answered = taken = 0

    async def answer(_request: bytes) -> None:
        nonlocal answered
        answered += 1

    async def take() -> None:
        """Get woken by the same request; the order is random."""
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


async def test_cancelled_worker_is_replaced(
    pair: tuple[socket.socket, socket.socket], nursery: trio.Nursery
) -> None:
    """A standby worker takes its place."""
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

    with trio.fail_after(10):
        await answered.wait()


async def test_worker_woken_without_a_request_ends_with_the_loop(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """A worker that is woken without a request ends with the loop."""
    kernel, daemon = pair

    async def wait(direct: DirectTrio) -> None:
        with contextlib.suppress(trio.ClosedResourceError):
            await direct.lowlevel.wait_readable(daemon.fileno())

    for _ in range(30):  # the order is random
        direct = DirectTrio()
        with trio.fail_after(10), daemon.dup() as other:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, direct)
                await trio.testing.wait_all_tasks_blocked()
                kernel.send(b"x")
                await trio.lowlevel.wait_readable(other)
                daemon.recv(100)
                direct.lowlevel.notify_closing(daemon.fileno())


def test_library_is_restored_afterwards() -> None:
    """The next session replaces the attribute again."""
    with request_loop.direct():
        assert isinstance(vars(pyfuse3)["trio"], DirectTrio)
        assert vars(pyfuse3)["trio"].open_nursery is trio.open_nursery
        assert vars(pyfuse3)["trio"].lowlevel.current_task is trio.lowlevel.current_task
    assert vars(pyfuse3)["trio"] is trio
