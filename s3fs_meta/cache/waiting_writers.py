"""Writers that wait until a full cache has room.

Owns: the number of waiting writers, and the limit on their wait.
Does not know: how room is made, how packs are sent; the uploader lists the packs in
``sent_until_s``.
Keeps: while a pack is being sent and the bucket responds, writers wait, because a slow network is
not an error. Otherwise a writer waits at most for the write timeout.
"""

from collections.abc import Awaitable, Callable

import trio

from s3fs_meta.cache.upload_signal import UploadSignal


class WaitingWriters:
    """The writers that wait for room in one cache."""

    def __init__(
        self, timeout_s: float, upload_signal: UploadSignal, is_away: Callable[[], bool]
    ) -> None:
        """Prepare to let writers wait.

        Args:
            timeout_s: the write timeout, which begins when no pack is being sent.
            upload_signal: wakes the uploader when a writer begins to wait.
            is_away: returns whether the last request to the bucket failed.
        """
        self.count = 0
        self._timeout_s = timeout_s
        self._upload_signal = upload_signal
        self._is_away = is_away
        self._room = trio.Event()
        # For each pack that is being sent, the time by which even a slow network has sent it.
        self.sent_until_s: list[float] = []
        self._uploaded_s = float("-inf")

    def wake(self) -> None:
        """Let all waiting writers check again whether the cache has room."""
        self._room.set()
        self._room = trio.Event()

    def note_upload(self) -> None:
        """Wake all waiting writers after the upload of a block; their timeout begins again."""
        self._uploaded_s = trio.current_time()
        self.wake()

    async def wait(self, has_room: Callable[[], Awaitable[bool]]) -> bool:
        """Wait until *has_room* returns True; return False if it did not in time."""
        self.count += 1
        began_s = trio.current_time()
        self._upload_signal.set()
        try:
            while not await has_room():
                now_s = trio.current_time()
                since_s = now_s if self._are_sent(now_s) else max(began_s, self._uploaded_s)
                if now_s >= since_s + self._timeout_s:
                    return False
                with trio.move_on_at(since_s + self._timeout_s):
                    await self._room.wait()
            return True
        finally:
            self.count -= 1

    def _are_sent(self, now_s: float) -> bool:
        """Return whether a pack is being sent and the last request to the bucket succeeded."""
        return any(now_s < until_s for until_s in self.sent_until_s) and not self._is_away()
