"""Tests of collecting the kernel's dirty data, on a real mount in this process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from typing_extensions import override

from s3fs_meta.errors import NoSpaceLeftError
from s3fs_meta.fuse.collection.barrier import Barrier
from s3fs_meta.fuse.collection.write_back import CollectingProcess, WriteBack
from s3fs_meta.model import ROOT_INO
from tests.fuse.conftest import Handlers, Mounted
from tests.polling import WAIT_S_MAX, until
from tests.programs import suspend

pytestmark = pytest.mark.mount

_HOLD = """
import sys
file = open(sys.argv[1], "wb", buffering=0)
for line in sys.stdin:
    file.write(line.encode())
    print("written", flush=True)
"""


@contextmanager
def holding(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start a process that writes each line of its input to an open file."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def write(process: "subprocess.Popen[str]", line: str) -> None:
    """Let the process write a line, and wait until the line was written."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "written\n"


def size(handlers: Handlers, name: bytes) -> int:
    """Return the size of a file in its database row."""
    found = handlers.fs.lookup(ROOT_INO, name)
    assert found is not None
    return found.size_bytes


async def test_mount_without_writers_starts_no_write_back_process(mounted: Mounted) -> None:
    operations, opened = mounted.handlers.operations, mounted.handlers.fs.open_files
    await mounted.run((mounted.path / "f").write_bytes, b"x")
    await until(lambda: not opened.writing)  # close(2) does not wait for the RELEASE request.
    before = dict(operations.requests)
    assert await operations.write_back.collect()
    assert operations.requests == before
    assert operations.write_back.pid is None
    assert operations.write_back.age_s() == 0.0


async def test_collection_without_dirty_pages_sends_two_requests_for_20_open_files(
    mounted: Mounted,
) -> None:
    """If no file has dirty pages, a collection only opens and releases the barrier file."""
    operations = mounted.handlers.operations
    opened: list[int] = []

    def make() -> None:
        opened.extend(
            os.open(mounted.path / f"f{number}", os.O_WRONLY | os.O_CREAT) for number in range(20)
        )

    await mounted.run(make)
    try:
        # The first collection also looks up the barrier file, so its requests are not counted.
        assert await operations.write_back.collect()
        before = dict(operations.requests)
        assert await operations.write_back.collect()
        grown = {
            kind: count - before[kind]
            for kind, count in operations.requests.items()
            if count != before[kind]
        }
        assert grown == {"open": 1, "release": 1}
        assert mounted.handlers.fs.open_files.writing == 20
    finally:
        with trio.fail_after(WAIT_S_MAX, shield=True):
            for one in opened:
                await mounted.run(os.close, one)


async def test_collected_dirty_data_reaches_the_daemon(mounted: Mounted) -> None:
    """A collection updates sizes in rows, and works again after its process was killed."""
    operations = mounted.handlers.operations
    with holding(mounted.path / "f") as writer:
        await mounted.run(write, writer, "one")
        assert size(mounted.handlers, b"f") == 0
        assert await operations.write_back.collect()
        assert size(mounted.handlers, b"f") == 4
        assert operations.write_back.pid is not None

        os.kill(operations.write_back.pid, signal.SIGKILL)
        await mounted.run(write, writer, "two")
        assert not await operations.write_back.collect()
        assert "exited" in operations.write_back.last_error
        assert operations.write_back.age_s() > 0
        assert await operations.write_back.collect()
        assert size(mounted.handlers, b"f") == 8
        assert operations.write_back.last_error == ""


async def test_write_back_process_need_not_own_the_barrier_file(mounted: Mounted) -> None:
    """Dirty data can be collected even if the barrier file belongs to another user."""
    operations = mounted.handlers.operations
    operations.barrier.entry.st_uid = 12345
    with holding(mounted.path / "f") as writer:
        await mounted.run(write, writer, "one")
        assert await operations.write_back.collect(), operations.write_back.last_error
        assert size(mounted.handlers, b"f") == 4


class _Ceaseless(dict[str, int]):
    """Counters of requests that increase by 1,000 at each read."""

    @override
    def __getitem__(self, name: str) -> int:
        self[name] = super().__getitem__(name) + 1000
        return super().__getitem__(name)


async def test_continuous_writes_are_not_reported_as_a_failed_write_back_process(
    mounted: Mounted,
) -> None:
    """If programs write continuously, a collection reports this and not a failed process."""
    barrier, opened = mounted.handlers.operations.barrier, mounted.handlers.fs.open_files
    write_back = WriteBack(barrier, opened, _Ceaseless(read=0, write=0))
    device = (await mounted.run(mounted.path.stat)).st_dev
    write_back.begin(str(mounted.path), device)
    with holding(mounted.path / "f") as writer:
        await mounted.run(write, writer, "one")
        written_s = time.monotonic()
        assert not await write_back.collect()
        assert "faster" in write_back.last_error
        assert size(mounted.handlers, b"f") == 4
        assert write_back.asked_age_s() <= time.monotonic() - written_s <= write_back.age_s()
        assert write_back.figures()["asked_age_s"] <= write_back.figures()["age_s"]
        assert "faster" in write_back.why_uncollected(0)
        assert write_back.why_uncollected(write_back.age_s() + 60) == ""
    await write_back.close()


async def test_stopped_write_back_process_delays_callers_for_a_limited_time(
    mounted: Mounted,
) -> None:
    write_back = mounted.handlers.operations.write_back
    with holding(mounted.path / "f") as writer:
        await mounted.run(write, writer, "one")
        assert await write_back.collect()
        assert write_back.pid is not None
        suspend(write_back.pid)
        await mounted.run(write, writer, "two")
        assert not await write_back.collect(0.01)
        assert "within 0.01 s" in write_back.last_error
        os.kill(write_back.pid, signal.SIGCONT)
        assert await write_back.collect()
        assert size(mounted.handlers, b"f") == 8


async def test_failed_write_of_another_file_does_not_prevent_a_collection(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """syncfs(2) reports the error of an earlier write, although write-back has started."""
    write_back = mounted.handlers.operations.write_back
    data = mounted.handlers.fs.data

    def refuse(*_arguments: object, **_options: object) -> None:
        raise NoSpaceLeftError("a test")

    def write_and_fail(path: Path) -> None:
        with pytest.raises(OSError, match="No space left"), open(path, "wb") as file:
            file.write(b"refused")

    with holding(mounted.path / "f") as writer:
        with monkeypatch.context() as patched:
            patched.setattr(data, "try_write", refuse)
            await mounted.run(write_and_fail, mounted.path / "g")
        await mounted.run(write, writer, "one")

        assert await write_back.collect(), write_back.last_error
        assert size(mounted.handlers, b"f") == 4


class _Cancelling(dict[str, int]):
    """Counts of requests; reading them before a request to the process cancels a scope."""

    scope = trio.CancelScope()

    @override
    def __getitem__(self, name: str) -> int:
        self.scope.cancel()
        return super().__getitem__(name)


async def test_collection_works_after_a_request_that_was_cancelled_before_it_was_sent(
    mounted: Mounted,
) -> None:
    barrier, opened = mounted.handlers.operations.barrier, mounted.handlers.fs.open_files
    counts = _Cancelling(read=0, write=0)
    write_back = WriteBack(barrier, opened, counts)
    device = (await mounted.run(mounted.path.stat)).st_dev
    write_back.begin(str(mounted.path), device)
    with holding(mounted.path / "f") as writer:
        await mounted.run(write, writer, "one")
        assert await write_back.collect()
        counts.scope = trio.CancelScope()
        with counts.scope as scope:
            await write_back.collect()
        assert scope.cancelled_caught

        await mounted.run(write, writer, "two")
        counts.scope = trio.CancelScope()
        assert await write_back.collect()
        assert size(mounted.handlers, b"f") == 8
    await write_back.close()


async def test_unmount_cancels_a_running_collection_of_dirty_pages(mounted: Mounted) -> None:
    """If no collection were possible during the unmount, the mount would become read-only."""
    write_back, results = mounted.handlers.operations.write_back, list[bool]()

    async def collect() -> None:
        results.append(await write_back.collect())

    with holding(mounted.path / "f") as writer:
        await mounted.run(write, writer, "one")
        assert await write_back.collect()
        assert write_back.pid is not None
        suspend(write_back.pid)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect)
            await trio.testing.wait_all_tasks_blocked()
            assert not results
            await write_back.close()
    assert results == [True]
    assert write_back.last_error == ""


async def test_barrier_file_is_not_listed_and_has_a_random_name(mounted: Mounted) -> None:
    with holding(mounted.path / "f") as writer:
        await mounted.run(write, writer, "one")
        assert await mounted.handlers.operations.write_back.collect()
        assert await mounted.run(os.listdir, mounted.path) == ["f"]
        other = os.fsdecode(Barrier().name)
        assert not await mounted.run(os.path.exists, mounted.path / other)


def test_write_back_program_inside_the_mount_is_not_started(tmp_path: Path) -> None:
    """The start of a program below the mountpoint would wait for the mount itself."""
    with pytest.raises(OSError, match="lies below the mountpoint"):
        CollectingProcess(str(Path(os.path.realpath(sys.executable)).parent), b"name")
    assert tmp_path.exists()
