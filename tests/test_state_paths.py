"""Tests of the locations of local state and of mount notes."""

import pwd
from pathlib import Path

import pytest

from s3fs_meta.errors import UsageError
from s3fs_meta.state_paths import default_cachedir, locate, runtime_dir


def test_state_directory_follows_the_xdg_specification() -> None:
    """Root uses a fixed path. A user's state is in an absolute $XDG_STATE_HOME or in $HOME."""
    assert default_cachedir({"XDG_STATE_HOME": "/s", "HOME": "/h"}, 0) == Path("/var/lib/s3fs-meta")
    assert default_cachedir({"XDG_STATE_HOME": "/s", "HOME": "/h"}, 9) == Path("/s/s3fs-meta")
    for state_home in ("", "relative"):
        assert default_cachedir({"XDG_STATE_HOME": state_home, "HOME": "/h"}, 9) == Path(
            "/h/.local/state/s3fs-meta"
        )


def test_state_directory_without_home_is_below_the_home_in_the_user_database() -> None:
    """mount(8) removes $HOME if a user mounts an fstab entry with the option ``user``."""
    user = next(one for one in pwd.getpwall() if one.pw_uid != 0)
    free = 1 + max(one.pw_uid for one in pwd.getpwall())
    assert default_cachedir({}, user.pw_uid) == Path(user.pw_dir, ".local/state/s3fs-meta")
    assert default_cachedir({"HOME": ""}, user.pw_uid) == default_cachedir({}, user.pw_uid)
    assert default_cachedir({}, free) == Path("/.local/state/s3fs-meta")


def test_mount_notes_are_stored_in_the_runtime_directory() -> None:
    """Mount notes are in the runtime directory.

    If there is none, they are next to the local state.
    """
    assert runtime_dir({"XDG_RUNTIME_DIR": "/r"}, 0) == Path("/run/s3fs-meta")
    assert runtime_dir({"XDG_RUNTIME_DIR": "/r"}, 9) == Path("/r/s3fs-meta")
    assert runtime_dir({"HOME": "/h"}, 9) == Path("/h/.local/state/s3fs-meta/run")


def test_different_urls_have_different_state_directories(tmp_path: Path) -> None:
    """The hash in the name of a state directory differs even if the readable parts are equal."""
    one = locate("s3://bucket/a-b", tmp_path)
    other = locate("s3://bucket/a/b", tmp_path)

    assert one != other
    assert one.name.startswith("bucket-a-b-")


def test_trailing_slash_of_a_url_does_not_change_the_state_directory(tmp_path: Path) -> None:
    assert locate("local:///data/", tmp_path) == locate("local:///data", tmp_path)


def test_symlink_in_the_path_of_the_cache_directory_is_followed(tmp_path: Path) -> None:
    """Two paths to the same cache directory lead to the same state directory."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    assert locate("local:///x", tmp_path / "link") == locate("local:///x", tmp_path / "real")


def test_url_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """The byte 0xFF in an argument is a lone surrogate in Python's text."""
    with pytest.raises(UsageError, match="is not UTF-8"):
        locate("local:///data/\udcff", tmp_path)


def test_symlink_loop_as_cache_directory_is_no_bug(tmp_path: Path) -> None:
    """Creating the state directory then fails with ELOOP, which names the path."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)

    assert locate("s3://bucket", loop).parent == loop
