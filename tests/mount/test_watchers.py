"""Clients that wait for the last upload of a mount."""

from s3fs_meta.control.protocol import Message
from s3fs_meta.mount.watchers import Watchers


def test_client_receives_progress_only_while_it_waits() -> None:
    watchers = Watchers()
    seen: list[Message] = []
    with watchers.until_the_end(seen.append):
        watchers.progress("blocks", 1, 2)
    watchers.progress("blocks", 2, 2)
    assert seen == [{"what": "blocks", "done": 1, "total": 2}]
