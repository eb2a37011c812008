"""The signal by which writers that wait for cache space wake the uploader."""

import trio
import trio.testing

from s3fs_meta.cache.upload_signal import UploadSignal


async def test_upload_signal_set_before_a_wait_ends_only_this_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An upload signal that is set while the uploader is busy ends the uploader's next wait."""
    signal = UploadSignal()
    signal.set()
    began_s = trio.current_time()
    await signal.wait(60)
    assert trio.current_time() == began_s
    assert not signal.is_set()
    await signal.wait(60)
    assert trio.current_time() >= began_s + 60
