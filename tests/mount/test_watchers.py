"""Clients that wait for uploads."""

from s3fs_meta.control.protocol import Message
from s3fs_meta.mount.watchers import Watchers


def test_client_of_a_flush_gets_messages_about_outages_only() -> None:
    """The flush reports its own progress, so its client gets only messages about outages."""
    watchers = Watchers()
    first: list[Message] = []
    second: list[Message] = []
    with watchers.until_the_end(first.append), watchers.during_a_flush(second.append):
        watchers.progress("blocks", 1, 2)
        watchers.waiting("away")
    watchers.progress("blocks", 2, 2)
    watchers.waiting("away")
    assert first == [{"what": "blocks", "done": 1, "total": 2}, {"waits": "away"}]
    assert second == [{"waits": "away"}]
