"""Arguments of ``mount -o remount``, before a daemon is asked. Real ones: tests/end_to_end/test_remount.py."""

from pathlib import Path

import pytest

from s3fs_meta.errors import NotMountedError, UsageError
from s3fs_meta.mount import remount
from s3fs_meta.mount.mount_table import Flags

_FLAGS = Flags(
    frozenset({"rw", "nosuid", "nodev", "relatime"}), frozenset({"rw", "user_id=0", "allow_other"})
)


def test_remount_is_a_word_of_its_own() -> None:
    """Also beside others, and not as part of one."""
    assert remount.asks_for_it(["ro,remount"])
    assert remount.asks_for_it(["ro", "remount,commit=3"])
    assert not remount.asks_for_it(["ro", "x-remount,profile=remount"])


def test_flags_that_the_kernel_shows_are_not_asked_for() -> None:
    """mount(8) repeats them; what else is given is kept with its text."""
    words = "ro,nosuid,nodev,relatime,remount,user_id=0,allow_other,commit=3,profile=a\\,b"

    given = remount._given([words], _FLAGS)

    assert {field: one.text for field, one in given.items()} == {
        "read_only": "ro",
        "commit_s": "commit=3",
        "profile": "profile=a,b",
    }


def test_unknown_words_are_refused_as_at_mount() -> None:
    """By name."""
    with pytest.raises(UsageError, match="xyzzy"):
        remount._given(["remount,ro,xyzzy"], _FLAGS)


def test_only_mounted_filesystems_can_be_remounted(tmp_path: Path) -> None:
    """The kernel's list decides."""
    with pytest.raises(NotMountedError, match=str(tmp_path)):
        remount.remount("local:///b", tmp_path, ["remount,ro"])
