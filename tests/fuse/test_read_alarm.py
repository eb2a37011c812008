"""Reads of requests that are not there any more, with the extension and without."""

import os
import signal
from pathlib import Path

import pytest
import trio

from s3fs_meta.fuse import read_alarm
from s3fs_meta.fuse.request_loop import Gate
from tests.fuse.conftest import opened, until_ready

LIES = 3


@pytest.mark.mount
@pytest.mark.timeout(30)
@pytest.mark.parametrize("extension", [True, False], ids=["extension", "alarm"])
async def test_request_that_was_taken_back_stops_nothing(
    tmp_path: Path,
    mountpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    extension: bool,
) -> None:
    """As one of a process that is killed between our look and our reading."""
    if extension:
        request.getfixturevalue("needs_extension")
    lies = 0
    really = Gate._is_ready

    def lie(gate: Gate, wait_s: float) -> bool:
        nonlocal lies
        lies += 1
        return lies <= LIES or really(gate, wait_s)

    async with opened(tmp_path) as made, trio.open_nursery() as nursery:
        await nursery.start(until_ready, made.operations, mountpoint, extension)
        await trio.to_thread.run_sync(os.statvfs, mountpoint)
        monkeypatch.setattr(Gate, "_is_ready", lie)
        await trio.to_thread.run_sync(os.statvfs, mountpoint)
        with trio.fail_after(10):
            while lies <= LIES:  # noqa: ASYNC110 - the loop of requests has no event
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


@pytest.mark.timeout(30)
def test_alarm_rings_until_its_end() -> None:
    """Again and again; and then the signal is what it was before."""
    before = signal.getsignal(read_alarm._SIGNAL)
    with read_alarm.ringing():
        for _ in range(2):
            signal.pause()

    assert signal.getsignal(read_alarm._SIGNAL) == before
