"""The signal of writers that wait for room."""

import trio
import trio.testing

from s3fs_meta.cache.upload_signal import UploadSignal


async def test_signal_set_before_the_wait_is_seen_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A writer may begin to wait while the uploader works."""
    signal = UploadSignal()
    signal.set()
    began_s = trio.current_time()
    await signal.wait(60)
    assert trio.current_time() == began_s
    assert not signal.is_set()
    await signal.wait(60)
    assert trio.current_time() >= began_s + 60
