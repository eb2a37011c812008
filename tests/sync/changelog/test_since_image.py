"""Changelogs since the last image."""

from s3fs_meta.limits import NEWS_BYTES_MIN
from s3fs_meta.sync.changelog.since_image import SinceImage


def test_earlier_changelogs_count_and_an_image_resets() -> None:
    """Small ones change locations alone: they are no news."""
    since = SinceImage()
    since.add(10)
    since.add_earlier([1, NEWS_BYTES_MIN])
    assert (since.bytes, since.has_news) == (11 + NEWS_BYTES_MIN, False)
    since.add_earlier([NEWS_BYTES_MIN + 1])
    since.add_earlier([])
    assert since.has_news
    since.reset()
    assert (since.bytes, since.has_news) == (0, False)
    since.note_news()
    assert since.has_news
