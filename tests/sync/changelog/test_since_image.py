"""The size of the changelogs since the last image."""

from s3fs_meta.limits import NEWS_BYTES_MIN
from s3fs_meta.sync.changelog.since_image import SinceImage


def test_image_resets_the_counter_of_changelog_bytes_since_the_last_image() -> None:
    """Changelogs up to a small size contain only locations, so they trigger no new image."""
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
