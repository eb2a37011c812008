"""Tests of request times by operation, and of the threads that sent the latest requests."""

import os
import struct
import threading
from pathlib import Path

import pytest
import trio

from s3fs_meta.fuse import request_times
from s3fs_meta.fuse.request_times import OPERATIONS, Recent, Sender, senders
from tests.fuse.conftest import Handlers, Mounted
from tests.polling import WAIT_S_MAX, until

SECOND_NS = 10**9
REQUEST = struct.Struct("=QII")
# The extension answers ``setattr``, ``listxattr`` and ``lseek``; libfuse answers the others.
MEASURED = (
    *("lookup", "mkdir", "create", "write", "read", "rename", "unlink", "statfs", "fsync"),
    *("setattr", "listxattr", "lseek"),
)


def _copy(*requests: tuple[int, int, int], now_s: int = 100, received: int = 0) -> Recent:
    content = b"".join(REQUEST.pack(at_s * SECOND_NS, *rest) for at_s, *rest in requests)
    return Recent(now_s * SECOND_NS, received or len(requests), content)


def _use(path: Path) -> None:
    """Send one request of each kind in MEASURED."""
    for number in range(3):
        (path / f"d{number}").mkdir()
        file = path / f"f{number}"
        with file.open("w+b") as handle:
            handle.write(b"x" * 100_000)
            os.fsync(handle.fileno())
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            handle.seek(0)
            handle.read()
        file.chmod(0o600)
        os.listxattr(file)
        with file.open("rb") as handle:
            os.lseek(handle.fileno(), 0, os.SEEK_HOLE)
        file.rename(path / f"g{number}")
        (path / f"g{number}").unlink()
        os.statvfs(path)


async def test_every_handler_that_replies_has_a_time_histogram(handlers: Handlers) -> None:
    """All counted requests except forget, which has no reply, have a histogram."""
    replying = set(handlers.operations.requests) - {"forget", "clear_privileges"}

    assert set(OPERATIONS.values()) == replying


@pytest.mark.mount
async def test_every_answered_request_is_counted_in_one_histogram_bucket(mounted: Mounted) -> None:
    await mounted.run(_use, mounted.path)

    found = request_times.figures()
    requests = mounted.handlers.operations.requests
    counts = {name: sum(found["operations"][name]["counts"]) for name in MEASURED}

    assert counts == {name: requests[name] for name in MEASURED}
    for one in found["operations"].values():
        assert len(one["counts"]) == len(found["bounds_s"]) + 1
        assert 0 < one["total_s"] < 60 * sum(one["counts"])
    assert found["bounds_s"] == sorted(found["bounds_s"])
    assert found["waiting"] == 0
    assert found["written_bytes"] == 3 * 100_000
    assert found["read_bytes"] == 3 * 100_000


@pytest.mark.mount
async def test_age_of_a_waiting_request_is_recorded_when_the_request_is_answered(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, goes_on, answered = trio.Event(), trio.Event(), trio.Event()
    path = mounted.path / "f"
    await mounted.run(path.touch)

    async def wait(*_arguments: object) -> None:
        waits.set()
        await goes_on.wait()

    def allocate() -> None:
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, 10)

    async def run() -> None:
        await mounted.run(allocate)
        answered.set()

    monkeypatch.setattr(mounted.handlers.fs.ranges, "allocate", wait)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        with trio.fail_after(WAIT_S_MAX):
            await waits.wait()
        await until(lambda: request_times.figures()["oldest_s"] > 0)
        first = request_times.figures()
        goes_on.set()
        await answered.wait()

    last = request_times.figures()
    assert first["waiting"] == 1
    assert first["oldest_s"] > 0
    assert "fallocate" not in first["operations"]
    assert last["waiting"] == 0
    assert last["operations"]["fallocate"]["total_s"] >= first["oldest_s"]


@pytest.mark.mount
async def test_each_of_the_latest_requests_is_recorded_with_its_thread_and_user(
    mounted: Mounted,
) -> None:
    sent: list[int] = []

    def list_names() -> None:
        sent.append(threading.get_native_id())
        for number in range(50):
            (mounted.path / f"missing{number}").exists()

    await mounted.run(list_names)
    found = senders(request_times.recent(), 60)

    assert found.counts[Sender(sent[0], os.getuid())] >= 50


def test_requests_before_the_measured_time_span_are_not_counted() -> None:
    copy = _copy((80, 1, 0), (95, 2, 0), (96, 2, 0), (99, 3, 1000))

    assert senders(copy, 10) == (10, {Sender(2, 0): 2, Sender(3, 1000): 1})


def test_measured_time_span_is_shorter_if_old_requests_were_overwritten() -> None:
    """If old requests were overwritten, a shorter time span keeps the request rates correct."""
    copy = _copy((97, 1, 0), (98, 1, 0), (99, 2, 0), received=1000)

    assert senders(copy, 10) == (3, {Sender(1, 0): 2, Sender(2, 0): 1})
    assert senders(copy, 2).span_s == 2


def test_write_back_requests_of_the_kernel_have_no_user() -> None:
    assert senders(_copy((99, 0, 2**32 - 1)), 10).counts == {Sender(0, None): 1}
