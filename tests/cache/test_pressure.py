"""The signal of writers that wait for room."""

import trio
import trio.testing

from s3fs_meta.cache.pressure import Pressure


async def test_signal_set_before_the_wait_is_seen_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A writer may begin to wait while the uploader works."""
    pressure = Pressure()
    pressure.set()
    began_s = trio.current_time()
    await pressure.wait(60)
    assert trio.current_time() == began_s
    assert not pressure.is_set()
    await pressure.wait(60)
    assert trio.current_time() >= began_s + 60
