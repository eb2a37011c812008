"""The output of a command that waits until a mount has downloaded content.

Owns: the messages about a bucket that does not respond. Does not know: downloads, the command.
"""

import math

import trio
from typing_extensions import override

from s3fs_meta.console.ui import Front
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.limits import (
    UPLOAD_AWAY_S_MIN,
    UPLOAD_LINE_PAUSE_S_MAX,
    UPLOAD_LINE_PAUSE_S_MIN,
)
from s3fs_meta.mount.requests.upload_watch import RemainingUpload, UploadWatch


class DownloadWatch(UploadWatch):
    """Reports at growing intervals that the bucket does not respond, and when it responds again."""

    def __init__(self, place: Target, front: Front) -> None:
        """Prepare to report outages of the bucket; print nothing yet."""
        super().__init__(place, front)
        self._lines = front
        self._is_silent = False
        self._next_s = -math.inf
        self._wait_s = UPLOAD_LINE_PAUSE_S_MIN

    @override
    def note(self, left: RemainingUpload) -> None:
        """Process the result of a poll; print a line if one is due. Never yields to other tasks."""
        if not (left.is_silent or left.unreachable_s >= UPLOAD_AWAY_S_MIN):
            if self._is_silent:
                self._lines.notice(f"the bucket {left.where} responds again")
            self._is_silent, self._next_s = False, -math.inf
            self._wait_s = UPLOAD_LINE_PAUSE_S_MIN
            return
        self._is_silent = True
        now_s = trio.current_time()
        if now_s < self._next_s:
            return
        problem = f"no response from {left.where} for {left.silent_s:.0f} s"
        if left.unreachable_s:
            problem = (
                f"requests to {left.where} have failed for {left.unreachable_s:.0f} s: {left.why}"
            )
        self._lines.notice(
            f"{problem}; the download continues when the store responds; cached content is kept"
        )
        self._next_s = now_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, UPLOAD_LINE_PAUSE_S_MAX)
