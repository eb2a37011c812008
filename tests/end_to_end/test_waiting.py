"""Tests of several users on one real mount, while the bucket does not respond."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.fuse.extension import fuse_intercept
from s3fs_meta.fuse.raw_operations import RawOperations
from s3fs_meta.limits import KERNEL_BACKGROUND_MAX, WAITING_HANDLERS_MAX
from s3fs_meta.meta.tables.block_map import Located
from tests.fuse.conftest import Mounted, mounted, mountpoint
from tests.polling import PROCESS_S_MAX, until

__all__ = ["mounted", "mountpoint"]

pytestmark = pytest.mark.mount

ALICE, BOB = 12001, 12002
FILES = WAITING_HANDLERS_MAX + 20

# This program truncates each file in the middle of a block, so each thread has a waiting request.
# Some kernels send at most 64 concurrent reads, but any number of concurrent truncations.
_CUTS = """
import collections, errno, os, sys, threading
folder, uid, first, count = sys.argv[1], *map(int, sys.argv[2:])
os.chdir(folder)  # Other users cannot enter the parent directory, so call chdir before setuid.
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
answers = collections.Counter()
def cut(number):
    try:
        os.truncate(str(number), 1)
        answers["done"] += 1
    except OSError as exc:
        answers[errno.errorcode[exc.errno]] += 1
threads = [threading.Thread(target=cut, args=(first + n,)) for n in range(count)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(answers.items()))
"""


# This program reads each file in a thread, and prints the number of files with correct content.
_READS = """
import os, sys, threading
folder, uid, first, count = sys.argv[1], *map(int, sys.argv[2:])
os.chdir(folder)
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
found = []
def read(number):
    with open(str(number), "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        found.append(file.readall() == b"%06d" % number * 11_000)
threads = [threading.Thread(target=read, args=(first + n,)) for n in range(count)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(found))
"""
_KERNEL_DEFAULT = 12  # The kernel's default limit on background requests.


@pytest.fixture
async def gate(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[trio.Event]:
    """Empty the cache of a mount. Return an event for which every fetch of a block waits."""
    session, gate = mounted.handlers.session, trio.Event()
    mounted.handlers.fs.waiting_room.is_shared = True
    fetch = BlockCache.fetch

    async def later(cache: BlockCache, located: Located, *, for_read: bool = False) -> None:
        await gate.wait()
        await fetch(cache, located, for_read=for_read)

    await mounted.run(_make, mounted.path)
    await session.flush()
    await session.durability.sync_all()
    session.cache.evictor.evict_bytes(1 << 60)
    session.durability.commit()
    monkeypatch.setattr(BlockCache, "fetch", later)
    yield gate
    gate.set()


def _content(number: int) -> bytes:
    # The file has several pages, because only read-ahead of several pages is a background request.
    return b"%06d" % number * 11_000


def _make(root: Path) -> None:
    root.chmod(0o755)
    for number in range(FILES + 20):
        (root / str(number)).write_bytes(_content(number))
        (root / str(number)).chmod(0o666)


def _cut(root: Path, uid: int, first: int, count: int) -> "subprocess.Popen[str]":
    words = [str(root), str(uid), str(first), str(count)]
    return subprocess.Popen(
        [sys.executable, "-c", _CUTS, *words], stdout=subprocess.PIPE, text=True, close_fds=False
    )


def _read(root: Path, uid: int, first: int, count: int) -> "subprocess.Popen[str]":
    words = [str(root), str(uid), str(first), str(count)]
    return subprocess.Popen(
        [sys.executable, "-c", _READS, *words], stdout=subprocess.PIPE, text=True, close_fds=False
    )


async def _output_of(process: "subprocess.Popen[str]") -> str:
    said, _ = await trio.to_thread.run_sync(process.communicate)
    return said.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="the test needs root privileges")
async def test_waiting_requests_of_one_user_do_not_block_another_user(
    mounted: Mounted, gate: trio.Event
) -> None:
    """One user can use two thirds of the waiting slots. Further requests fail with EAGAIN."""
    room, share = mounted.handlers.fs.waiting_room, WAITING_HANDLERS_MAX * 2 // 3
    requests = mounted.handlers.operations.requests
    before = requests["setattr"]
    with trio.fail_after(PROCESS_S_MAX):
        greedy = await mounted.run(_cut, mounted.path, ALICE, 0, FILES)
        await until(lambda: requests["setattr"] >= before + FILES)
        assert len(room) == share
        other = await mounted.run(_cut, mounted.path, BOB, FILES, 20)
        await until(lambda: len(room) >= share + 20)
        gate.set()

        assert await _output_of(other) == "[('done', 20)]"
        assert await _output_of(greedy) == f"[('EAGAIN', {FILES - share}), ('done', {share})]"
    assert len(room) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="the test needs root privileges")
async def test_waiting_reads_of_one_user_do_not_delay_stat_calls_of_other_users(
    mounted: Mounted, gate: trio.Event
) -> None:
    """While reads wait for the bucket, the daemon answers attribute requests immediately."""
    requests = mounted.handlers.operations.requests
    before, count = requests["read"], KERNEL_BACKGROUND_MAX + 40
    with trio.fail_after(PROCESS_S_MAX):
        greedy = await mounted.run(_read, mounted.path, ALICE, 0, count)
        await until(lambda: requests["read"] >= before + _KERNEL_DEFAULT)
        other = await mounted.run(_read, mounted.path, BOB, count, 1)
        for number in range(100):  # The daemon answers getattr requests while reads wait.
            await mounted.run(os.stat, mounted.path / str(FILES + number % 20))
        assert greedy.poll() is other.poll() is None, "both processes must wait for the bucket"
        gate.set()

        assert await _output_of(other) == "1"
        assert await _output_of(greedy) == str(count)


async def test_read_requests_carry_a_user_id_and_write_back_requests_carry_none(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    askers: dict[str, set[int]] = {"read": set(), "write": set()}
    for name, seen in askers.items():
        _record_callers(monkeypatch, name, seen)

    def use(root: Path) -> None:
        (root / "f").write_bytes(b"x" * 100)
        fd = os.open(root / "f", os.O_RDWR)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.read(fd, 100)
        os.close(fd)

    await mounted.run(use, mounted.path)

    assert askers == {"read": {os.geteuid()}, "write": {-2}}


def _record_callers(monkeypatch: pytest.MonkeyPatch, name: str, seen: set[int]) -> None:
    handler = getattr(RawOperations, name)

    def noted(self: RawOperations, *arguments: object) -> object:
        seen.add(fuse_intercept.caller())
        return handler(self, *arguments)

    monkeypatch.setattr(RawOperations, name, noted)
