"""Tests of clients that wait until a mount has finished its last upload."""

from s3fs_meta.control.protocol import Message
from s3fs_meta.mount.watchers import Watchers


def test_control_client_receives_upload_progress_only_while_it_waits() -> None:
    watchers = Watchers()
    seen: list[Message] = []
    with watchers.until_the_end(seen.append):
        watchers.progress("blocks", 1, 2)
    watchers.progress("blocks", 2, 2)
    assert seen == [{"what": "blocks", "done": 1, "total": 2}]
