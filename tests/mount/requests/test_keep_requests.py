"""Tests of kept points in control messages, and of keep requests without a mount."""

from pathlib import Path

import pytest

from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.model import Txg
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.requests import keep_requests
from s3fs_meta.mount_errors import NotMountedError
from s3fs_meta.sync.history.kept.kept_points import KeptPoints
from tests.codec.kept_points import point_of

KEYRING = Keyring(None, bytes(range(32)))


async def test_size_of_kept_points_is_unknown_without_a_local_database() -> None:
    """Without a local database, only names and times of kept points are known."""
    point = point_of(KEYRING)
    found = await keep_requests.listed(KeptPoints((point,)), None, Txg(0))
    assert found["held_bytes"] is None
    assert found["points"] == [keep_requests.message_of(point)]
    assert found["points"][0]["alone_bytes"] is None


async def test_keep_requests_without_a_mount_are_refused(tmp_path: Path) -> None:
    place = Target(f"local://{tmp_path}", tmp_path)
    with pytest.raises(NotMountedError):
        await keep_requests.request_list(place)
    with pytest.raises(NotMountedError):
        await keep_requests.request_drop(place, ["a"])
