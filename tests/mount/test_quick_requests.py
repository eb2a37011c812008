"""Asking a mount without an event loop; ``test_rm`` asks a real one."""

import os
from pathlib import Path

import pytest

from s3fs_meta.control.protocol import decode, encode
from s3fs_meta.errors import NotMountedError
from s3fs_meta.model import Ino
from s3fs_meta.mount.mount_paths import Entry
from s3fs_meta.mount.quick_requests import remove, told
from s3fs_meta.mount.targets import Target


def test_absent_daemon_is_named_as_the_user_named_it(tmp_path: Path) -> None:
    """Not by the path of a state directory."""
    place = Target("local:///a", tmp_path / "s", "/mnt/x")
    with pytest.raises(NotMountedError, match=r"^/mnt/x is not mounted"):
        remove(Entry(place, Ino(1), b"name", Ino(2), "/mnt/x/name"))


def test_names_of_any_bytes_are_reported(tmp_path: Path) -> None:
    """In the form that JSON can carry and the mount turns back."""
    for name in (b"plain", "\u00e4".encode(), b"odd \xff\n"):
        entry = Entry(Target("local:///a", tmp_path), Ino(1), name, Ino(2), "/mnt/x")
        arrived = decode(encode(told(entry)))
        assert (arrived["parent"], os.fsencode(arrived["name"]), arrived["ino"]) == (1, name, 2)
