"""The request log: numbers of requests, stored in the state directory."""

import fcntl
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from s3fs_meta.limits import (
    REQUEST_DAYS_MAX,
    REQUEST_LOG_BYTES_MAX,
    REQUEST_NAMES_MAX,
    REQUESTS_SAVE_S,
)
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.billing import DAY_NS, Billed, Meter, RequestClass, Usage
from s3fs_meta.sync.host_state import request_log
from s3fs_meta.sync.host_state.json_file import NewerFileError
from s3fs_meta.sync.host_state.request_log import Ledger, RequestLog
from s3fs_meta.sync.host_state.state_dir import StateDir
from tests.sync.history.set_clock import SetClock
from tests.tasks import running

KEY = ObjectKey("pack/00/1-00")
NOW_NS = 20_000 * DAY_NS + 5
USAGE: Usage = {20_000: {("data", "put"): Billed(1, 2, 3), ("reads", "get"): Billed(4, 0, 6)}}


def test_request_log_contains_the_sum_of_all_added_counts(tmp_path: Path) -> None:
    request_log.add(tmp_path, USAGE, {20_000: 100}, NOW_NS)
    ledger = request_log.add(tmp_path, USAGE, {20_000: 50, 19_999: 7}, NOW_NS + DAY_NS)

    assert ledger == request_log.read(tmp_path)
    assert ledger == Ledger(
        NOW_NS,
        {20_000: {("data", "put"): Billed(2, 4, 6), ("reads", "get"): Billed(8, 0, 12)}},
        {20_000: 50, 19_999: 7},
    )


def test_request_log_loses_no_concurrently_added_counts(tmp_path: Path) -> None:
    """Several threads, which open the state directory like separate processes, add counts."""

    def add() -> None:
        for _ in range(10):
            request_log.add(tmp_path, USAGE, {}, NOW_NS)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(add) for _ in range(4)]:
            done.result()

    ledger = request_log.read(tmp_path)
    assert ledger is not None
    assert ledger.usage[20_000]["data", "put"] == Billed(40, 80, 120)


def test_request_log_is_a_json_file_that_older_programs_ignore(tmp_path: Path) -> None:
    """Older programs can open a state directory that contains a request log."""
    state = StateDir(tmp_path / "state")
    request_log.add(state.path, USAGE, {20_000: 100}, NOW_NS)

    assert json.loads((state.path / "requests.json").read_text()) == {
        "version": 1,
        "since_ns": NOW_NS,
        "days": {
            "2024-10-04": {
                "stored_bytes": 100,
                "requests": {"data put": [1, 2, 3], "reads get": [4, 0, 6]},
            }
        },
    }
    assert not state.has_remains
    StateDir(state.path)


def test_request_log_deletes_the_oldest_days(tmp_path: Path) -> None:
    usage: Usage = {20_000 - day: dict(USAGE[20_000]) for day in range(REQUEST_DAYS_MAX)}
    request_log.add(tmp_path, usage, dict.fromkeys(usage, 1), NOW_NS)
    ledger = request_log.add(tmp_path, {20_001: USAGE[20_000]}, {20_001: 1}, NOW_NS + DAY_NS)

    oldest = 20_002 - REQUEST_DAYS_MAX
    assert set(ledger.usage) == set(ledger.stored_bytes) == set(range(oldest, 20_002))


def test_wrong_clock_deletes_no_request_counts_of_other_days(tmp_path: Path) -> None:
    """The clock of a host may show 1970 after a boot, or a year in the future."""
    request_log.add(tmp_path, {30_000: USAGE[20_000]}, {}, 30_000 * DAY_NS)
    request_log.add(tmp_path, USAGE, {}, NOW_NS)
    ledger = request_log.add(tmp_path, {0: USAGE[20_000]}, {}, 7)

    assert set(ledger.usage) == {0, 20_000, 30_000}
    assert ledger.since_ns == 7


async def test_stopped_process_that_locked_the_request_log_does_not_block_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that cannot lock the request log keeps its counts in memory for a later save."""
    (tmp_path / "meta.db").touch()
    monkeypatch.setattr(request_log, "REQUESTS_LOCK_S_MAX", 0.02)
    meter = Meter(SetClock(NOW_NS))
    meter.count(RequestClass.PUT, KEY)
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)

    assert await request_log.save(tmp_path, meter) is None
    os.close(fd)
    saved = await request_log.save(tmp_path, meter)

    assert saved is not None
    assert saved.usage == {20_000: {("data", "put"): Billed(1, 0, 0)}}


def test_request_log_of_24_counters_per_day_uses_less_than_half_of_its_size_limit(
    tmp_path: Path,
) -> None:
    names = {(f"cause-{number:02}", "put"): Billed(10**9, 10**12, 10**12) for number in range(24)}
    usage = {20_000 - day: dict(names) for day in range(REQUEST_DAYS_MAX)}
    stored = dict.fromkeys(usage, 10**15)
    ledger = request_log.add(tmp_path, usage, stored, NOW_NS)

    assert (tmp_path / "requests.json").stat().st_size < REQUEST_LOG_BYTES_MAX / 2
    assert request_log.read(tmp_path) == ledger


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"version": "1"}',
        b'{"version": 1, "since_ns": 1, "days": []}',
        b'{"version": 1, "since_ns": -1, "days": {}}',
        b'{"version": 1, "since_ns": 1, "days": {"yesterday": {}}}',
        b'{"version": 1, "since_ns": 1, "days": {"2024-10-04": {"stored_bytes": 1}}}',
        b'{"version": 1, "since_ns": 1, "days": {"2024-10-04":'
        b' {"stored_bytes": null, "requests": {"data": [1, 2, 3]}}}}',
        b'{"version": 1, "since_ns": 1, "days": {"2024-10-04":'
        b' {"stored_bytes": null, "requests": {"data put": [1, 2]}}}}',
        b"[" * 100_000,
        b" " * (REQUEST_LOG_BYTES_MAX + 1),
    ],
)
def test_damaged_request_log_is_replaced_by_the_new_counts(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "requests.json").write_bytes(data)

    assert request_log.read(tmp_path) is None
    assert request_log.add(tmp_path, USAGE, {}, NOW_NS) == Ledger(NOW_NS, USAGE, {})
    assert request_log.read(tmp_path) == Ledger(NOW_NS, USAGE, {})


async def test_request_log_of_a_newer_program_is_not_overwritten(tmp_path: Path) -> None:
    newer = b'{"version": 2}'
    (tmp_path / "requests.json").write_bytes(newer)
    meter = Meter(SetClock(NOW_NS))
    meter.count(RequestClass.PUT, KEY)

    with pytest.raises(NewerFileError):
        request_log.read(tmp_path)
    assert await request_log.save(tmp_path, meter) is None

    assert (tmp_path / "requests.json").read_bytes() == newer
    assert meter.seen() == {20_000: {("data", "put"): Billed(1, 0, 0)}}


async def test_request_log_is_not_saved_without_a_state_directory_or_without_counts(
    tmp_path: Path,
) -> None:
    meter = Meter(SetClock(NOW_NS))
    meter.count(RequestClass.PUT, KEY)
    assert await request_log.save(tmp_path / "missing", meter) is None
    assert meter.seen() != {}

    assert await request_log.save(tmp_path, Meter(SetClock(NOW_NS))) is None
    assert os.listdir(tmp_path) == []


async def test_request_counts_that_cannot_be_written_stay_in_memory(tmp_path: Path) -> None:
    (tmp_path / "requests.json.new").mkdir()
    meter = Meter(SetClock(NOW_NS))
    meter.count(RequestClass.PUT, KEY)

    assert await request_log.save(tmp_path, meter) is None

    assert meter.seen() == {20_000: {("data", "put"): Billed(1, 0, 0)}}


async def test_requests_of_today_include_saved_and_unsaved_counts(tmp_path: Path) -> None:
    """The requests of today are summed over all causes for each class."""
    request_log.add(tmp_path, {**USAGE, 19_999: USAGE[20_000]}, {}, NOW_NS)
    meter = Meter(SetClock(NOW_NS))
    log = RequestLog(tmp_path, meter, lambda: 123)
    meter.count(RequestClass.PUT, KEY, sent_bytes=10)
    assert log.today() == {"put": Billed(1, 10, 0)}

    await log.save()
    meter.count(RequestClass.PUT, ObjectKey("lease"), sent_bytes=10)

    assert log.today() == {"put": Billed(3, 22, 3), "get": Billed(4, 0, 6)}
    ledger = request_log.read(tmp_path)
    assert ledger is not None
    assert ledger.stored_bytes == {20_000: 123}


async def test_failed_save_of_the_request_log_loses_no_counts_of_today(tmp_path: Path) -> None:
    (tmp_path / "meta.db").touch()
    meter = Meter(SetClock(NOW_NS))
    log = RequestLog(tmp_path, meter, lambda: 0)
    meter.count(RequestClass.PUT, KEY)
    await log.save()
    (tmp_path / "requests.json.new").mkdir()
    meter.count(RequestClass.PUT, KEY)
    await log.save()

    assert log.today() == {"put": Billed(2, 0, 0)}


async def test_save_without_new_counts_does_not_write_the_request_log(tmp_path: Path) -> None:
    request_log.add(tmp_path, USAGE, {}, NOW_NS)
    before = (tmp_path / "requests.json").stat().st_ino

    saved = await request_log.save(tmp_path, Meter(SetClock(NOW_NS)), 5)

    assert saved == Ledger(NOW_NS, USAGE, {})
    assert (tmp_path / "requests.json").stat().st_ino == before


def test_number_of_request_causes_per_day_is_limited(tmp_path: Path) -> None:
    """The number of causes is limited, so that the file does not grow without limit."""
    names = {(f"cause-{number:03}", "put"): Billed(1) for number in range(REQUEST_NAMES_MAX + 1)}
    request_log.add(tmp_path, {20_000: names}, {}, NOW_NS)

    ledger = request_log.read(tmp_path)

    assert ledger is not None
    assert len(ledger.usage[20_000]) == REQUEST_NAMES_MAX


async def test_new_request_counts_are_saved_at_intervals(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    (tmp_path / "meta.db").touch()
    meter = Meter(SetClock(NOW_NS))
    log = RequestLog(tmp_path, meter, lambda: 0)

    async def save(count: int) -> None:
        """Count a request; let save intervals pass until the file contains *count* requests."""
        meter.count(RequestClass.PUT, KEY)
        while (found := request_log.read(tmp_path)) is None or (  # noqa: ASYNC110 - a thread writes the file
            found.usage[20_000]["data", "put"].requests < count
        ):
            mock_clock.jump(REQUESTS_SAVE_S)
            await trio.lowlevel.checkpoint()

    async with running(log.run):
        await save(1)
        await save(2)


async def test_request_log_is_created_only_in_a_directory_with_local_state(tmp_path: Path) -> None:
    """A command with a mistyped URL must not leave a request log behind."""
    meter = Meter(SetClock(NOW_NS))
    meter.count(RequestClass.PUT, KEY)

    assert await request_log.save(tmp_path, meter) is None

    assert request_log.read(tmp_path) is None
