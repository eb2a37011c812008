"""Tests of the barrier file, whose release shows that all earlier requests have arrived."""

import os

import trio
import trio.testing

from s3fs_meta.fuse.collection.barrier import Barrier


def test_barrier_file_belongs_to_the_user_who_mounted_the_filesystem() -> None:
    """The barrier file belongs to the user of the mount, who runs the write-back process."""
    entry = Barrier().entry
    assert (entry.st_uid, entry.st_gid) == (os.geteuid(), os.getegid())


async def test_wait_at_the_barrier_ends_when_all_opens_of_the_barrier_file_are_released() -> None:
    """If a process with the barrier file open is killed, the kernel still releases the file."""
    barrier = Barrier()
    barrier.opened()
    barrier.opened()
    seen: list[bool] = []
    async with trio.open_nursery() as nursery:
        passed = trio.Event()

        async def wait() -> None:
            await barrier.passed()
            passed.set()

        nursery.start_soon(wait)
        barrier.released()
        await trio.testing.wait_all_tasks_blocked()
        seen.append(passed.is_set())
        barrier.released()
    assert seen == [False]


async def test_write_back_barrier_waits_only_for_earlier_writes() -> None:
    barrier, room = Barrier(), trio.Event()

    async def write() -> int:
        await room.wait()
        return 1

    async def write_later() -> int:
        await trio.Event().wait()
        return 1

    barrier.opened()
    barrier.released()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(barrier.write, write())
        await trio.testing.wait_all_tasks_blocked()
        assert barrier.under_way == 1
        passed = trio.Event()

        async def wait() -> None:
            await barrier.passed()
            passed.set()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(barrier.write, write_later())
        too_early = passed.is_set()
        room.set()
        await passed.wait()
        assert not too_early
        assert barrier.under_way == 1
        nursery.cancel_scope.cancel()
    assert barrier.under_way == 0
