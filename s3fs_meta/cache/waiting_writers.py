"""Writers that wait until a full cache has room.

Owns: the number of waiting writers, the limit on their wait, and the signal to the uploader.
Does not know: how room is made, how packs are sent; the uploader calls ``sending`` for each pack.
Keeps: while a pack is being sent, writers wait, because a slow network is not an error. Otherwise a
writer waits at most for the write timeout. A pack counts as being sent

- while it waits for the upload limit before one of its first _LIMITED_ATTEMPTS_MAX attempts;
- then for the time that its transfer takes at the minimum speed, unless the last request to the
  bucket failed. This rule is for stores other than S3, which do not report the pieces they send;
- while pieces are sent at the minimum speed, also after a failure, up to _TRANSFERS_MAX complete
  transfers.

The kernel writes back a large file with many requests, a few at a time. After one of them has
waited for the complete write timeout and failed, the requests of the next write timeout wait only a
fraction of it. Otherwise the program would wait for the write timeout once for each few requests.
A failed short wait does not extend this time, so that a later writer waits for the complete timeout
again.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from s3fs_meta.limits import STORE_BODY_BYTES_PER_S_MIN

# If transfers of a pack are repeated, their bytes count as progress up to N times the pack's size.
_TRANSFERS_MAX: Final = 3
# Number of attempts after which waiting for the upload limit no longer counts as progress.
_LIMITED_ATTEMPTS_MAX: Final = 3
_MEASUREMENTS: Final = 4  # number of speed measurements during one write timeout
# Fraction of the write timeout that a writer waits soon after a failed complete wait.
_AFTER_FAILURE: Final = 1 / 20


class UploadSignal:
    """A signal that wakes the uploader early; it is cleared when a wait for it ends."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """Wake the waiting task, or let the next wait return immediately."""
        self._event.set()

    def is_set(self) -> bool:
        """Return whether the signal was set after the last wait."""
        return self._event.is_set()

    async def wait(self, limit_s: float) -> None:
        """Wait until the signal is set, at most *limit_s* seconds; then clear it."""
        with trio.move_on_after(limit_s):
            await self._event.wait()
        self._event = trio.Event()


class SentPack:
    """One pack that is being sent, with the bytes of all attempts."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._sent_bytes = 0
        self._is_limited = True  # True while the pack waits for the upload limit
        self._attempts = 0
        self.until_s = float("inf")  # time by which the pack would be sent at the minimum speed

    def begin(self) -> None:
        """End the wait for the upload limit; the first call sets the transfer's time limit."""
        self._is_limited = False
        self._attempts += 1
        until_s = trio.current_time() + self._size_bytes / STORE_BODY_BYTES_PER_S_MIN
        self.until_s = min(self.until_s, until_s)

    def await_limit(self) -> None:
        """Mark the pack as waiting for the upload limit again, after a failed attempt."""
        self._is_limited = True

    @property
    def is_limited(self) -> bool:
        """Return whether the pack waits for the upload limit before one of its first attempts.

        Later waits are ignored: otherwise a store that accepts bytes but never replies would keep
        writers waiting.
        """
        return self._is_limited and self._attempts < _LIMITED_ATTEMPTS_MAX

    def note_sent(self, size_bytes: int) -> None:
        """Record that a piece was sent. The thread of a request calls this method."""
        self._sent_bytes += size_bytes

    @property
    def sent_bytes(self) -> int:
        """Return the number of sent bytes, at most _TRANSFERS_MAX times the size of the pack."""
        return min(self._sent_bytes, _TRANSFERS_MAX * self._size_bytes)


class WaitingWriters:
    """The writers that wait for room in one cache."""

    def __init__(
        self, timeout_s: float, upload_signal: UploadSignal, is_unreachable: Callable[[], bool]
    ) -> None:
        """Prepare to let writers wait.

        Args:
            timeout_s: the write timeout, which begins when no pack is being sent.
            upload_signal: wakes the uploader when a writer begins to wait.
            is_unreachable: returns whether the last request to the bucket failed.
        """
        self.count = 0
        self._timeout_s = timeout_s
        self._upload_signal = upload_signal
        self._is_unreachable = is_unreachable
        self._room = trio.Event()
        self._packs: list[SentPack] = []
        self._earlier_bytes = 0  # bytes sent for earlier packs, which are complete or have failed
        self._progress_s = float("-inf")
        self._failed_s = float("-inf")  # last failure after a complete timeout
        self._measured_s = float("-inf")
        self._measured_bytes = 0

    def wake(self) -> None:
        """Wake all waiting writers, so that each checks again whether the cache has room."""
        self._room.set()
        self._room = trio.Event()

    def note_upload(self) -> None:
        """Wake all waiting writers after the upload of a block; their timeout begins again."""
        self._progress_s = trio.current_time()
        self.wake()

    @contextmanager
    def sending(self, size_bytes: int) -> Iterator[SentPack]:
        """Let writers wait while the uploader sends a pack of *size_bytes*."""
        pack = SentPack(size_bytes)
        self._packs.append(pack)
        try:
            yield pack
        finally:
            self._packs.remove(pack)
            self._earlier_bytes += pack.sent_bytes

    async def wait(self, has_room: Callable[[], Awaitable[bool]]) -> bool:
        """Wait until *has_room* returns True; return False after the time limit."""
        began_s = trio.current_time()
        limit_s = self._timeout_s
        if self._progress_s < self._failed_s and began_s < self._failed_s + self._timeout_s:
            limit_s *= _AFTER_FAILURE
        if not self.count:
            self._measured_s, self._measured_bytes = began_s, self._sent_bytes
        self.count += 1
        self._upload_signal.set()
        try:
            while not await has_room():
                now_s = trio.current_time()
                if self._are_sent(now_s):
                    self._progress_s = now_s
                end_s = max(began_s + limit_s, self._progress_s + self._timeout_s)
                if now_s >= end_s:
                    if now_s >= max(began_s, self._progress_s) + self._timeout_s:
                        self._failed_s = now_s
                    return False
                if self._packs:
                    end_s = min(end_s, now_s + self._timeout_s / _MEASUREMENTS)
                with trio.move_on_at(end_s):
                    await self._room.wait()
            return True
        finally:
            self.count -= 1

    @property
    def _sent_bytes(self) -> int:
        return self._earlier_bytes + sum(pack.sent_bytes for pack in self._packs)

    def _are_sent(self, now_s: float) -> bool:
        """Return whether a pack counts as being sent, as defined in the module's docstring."""
        if any(pack.is_limited for pack in self._packs):
            return True
        if not self._is_unreachable() and any(now_s < pack.until_s for pack in self._packs):
            return True
        passed_s, sent_bytes = now_s - self._measured_s, self._sent_bytes
        if passed_s < self._timeout_s / _MEASUREMENTS:
            return False
        is_fast = sent_bytes - self._measured_bytes >= passed_s * STORE_BODY_BYTES_PER_S_MIN
        self._measured_s, self._measured_bytes = now_s, sent_bytes
        return is_fast
