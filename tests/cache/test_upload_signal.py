"""The signal with which writers that wait for room wake the uploader."""

import trio
import trio.testing

from s3fs_meta.cache.upload_signal import UploadSignal


async def test_early_upload_signal_ends_only_the_next_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A writer may set the upload signal while the uploader is busy."""
    signal = UploadSignal()
    signal.set()
    began_s = trio.current_time()
    await signal.wait(60)
    assert trio.current_time() == began_s
    assert not signal.is_set()
    await signal.wait(60)
    assert trio.current_time() >= began_s + 60
