"""Changelogs since the last image: the measure of when another one is due.

Owns: two sums. Does not know: how long an image takes, or a restore.
"""

from collections.abc import Sequence

from s3fs_meta.limits import NEWS_BYTES_MIN


class SinceImage:
    """Changelogs that a restore replays after the last image; the writer adds, an image resets."""

    def __init__(self) -> None:
        self.bytes = 0  # changelogs and their parts, as stored
        self.has_news = False  # True if a changelog changes more than locations

    def add(self, stored_bytes: int) -> None:
        """Count an object that was stored."""
        self.bytes += stored_bytes

    def note_news(self) -> None:
        """Note that a txg changes more than locations."""
        self.has_news = True

    def add_earlier(self, sizes: Sequence[int]) -> None:
        """Count changelogs of earlier mounts, of which only the sizes are known."""
        self.bytes += sum(sizes)
        self.has_news = self.has_news or max(sizes, default=0) > NEWS_BYTES_MIN

    def reset(self) -> None:
        """Reset both sums: there is a newer image."""
        self.bytes = 0
        self.has_news = False
