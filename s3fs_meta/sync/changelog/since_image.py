"""Totals of the changelogs since the last image, which determine when the next image is due.

Owns: two totals. Does not know: how long an image or a restore takes.
"""

from collections.abc import Sequence

from s3fs_meta.limits import NEWS_BYTES_MIN


class SinceImage:
    """Tracks the changelogs that a restore must replay after the last image."""

    def __init__(self) -> None:
        self.bytes = 0  # total size of all changelogs and parts since the last image
        # True if a changelog since the last image changes, or may change, more than block locations
        self.has_news = False

    def add(self, stored_bytes: int) -> None:
        """Add the size of a stored changelog or part."""
        self.bytes += stored_bytes

    def note_news(self) -> None:
        """Record that a txg after the last image changes more than the locations of blocks."""
        self.has_news = True

    def add_earlier(self, sizes: Sequence[int]) -> None:
        """Add the sizes of changelogs from earlier mounts without reading their contents."""
        self.bytes += sum(sizes)
        self.has_news = self.has_news or max(sizes, default=0) > NEWS_BYTES_MIN

    def reset(self) -> None:
        """Reset both totals after a new image was created."""
        self.bytes = 0
        self.has_news = False
