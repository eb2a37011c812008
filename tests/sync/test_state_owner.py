"""Only a state directory that belongs to the caller alone is used."""

import os
import stat
from pathlib import Path

import pytest

from s3fs_meta.errors import SettingsError
from s3fs_meta.sync.state_dir import StateDir
from tests.conftest import REQUIRED

OTHER_UID = 12345


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return a state directory as a mount leaves it."""
    made = StateDir(tmp_path / "s")
    made.database.write_bytes(b"db")
    made.blocks.mkdir(mode=0o700)
    made.keep_holder("holder")
    return made.path


@pytest.fixture
def as_root() -> None:
    """Skip a test that gives files away where that is not possible."""
    if os.geteuid() != 0 and "root" not in REQUIRED:
        pytest.skip("needs root")


def _listing(path: Path) -> list[tuple[str, int, int]]:
    found = [(entry, entry.lstat()) for entry in [path, *path.rglob("*")]]
    return sorted((str(entry), status.st_mode, status.st_uid) for entry, status in found)


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("entry", ["", "meta.db", "blocks", "holder"])
def test_entry_of_another_user_is_refused(state: Path, entry: str) -> None:
    """The message names the path, both users and the way out; nothing is changed."""
    os.chown(state / entry, OTHER_UID, -1)
    before = _listing(state)

    with pytest.raises(SettingsError, match=f"belongs to user {OTHER_UID}.*--cachedir") as refused:
        StateDir(state)

    assert str(state / entry) in refused.value.message
    assert _listing(state) == before


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722, 0o1777])
def test_directory_that_others_can_write_is_refused(state: Path, mode: int) -> None:
    """They may have planted anything; the message says what to do."""
    state.chmod(mode)

    with pytest.raises(SettingsError, match=rf"other users can write .*{mode:04o}.*chmod 700"):
        StateDir(state)

    assert stat.S_IMODE(state.stat().st_mode) == mode


@pytest.mark.parametrize("name", ["meta.db", "mount.log", "lock", "blocks", "holder.new"])
def test_link_in_the_directory_is_refused(state: Path, tmp_path: Path, name: str) -> None:
    """Writing through it would reach any file of the caller."""
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    present = state / name
    if present.is_dir():
        present.rmdir()
    present.unlink(missing_ok=True)
    present.symlink_to(target)

    with pytest.raises(SettingsError, match="symbolic link"):
        StateDir(state)

    assert target.read_bytes() == b"precious"


def test_link_in_the_place_of_the_directory_is_refused(state: Path, tmp_path: Path) -> None:
    """Also to a directory that would do."""
    link = tmp_path / "link"
    link.symlink_to(state)

    with pytest.raises(SettingsError, match="symbolic link"):
        StateDir(link)


def test_special_file_in_the_directory_is_refused(state: Path) -> None:
    """Opening a FIFO could wait for ever."""
    os.mkfifo(state / "mount.log")

    with pytest.raises(SettingsError, match="special file"):
        StateDir(state)


def test_directory_that_others_can_read_is_closed_to_them(state: Path) -> None:
    """Nothing can have been planted, so it goes on being used."""
    state.chmod(0o755)

    StateDir(state)

    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_file_that_others_can_write_is_refused_in_an_open_directory(state: Path) -> None:
    """Others may have written to it."""
    state.chmod(0o755)
    (state / "meta.db").chmod(0o666)

    with pytest.raises(SettingsError, match=r"other users can write to .*meta\.db.*0666"):
        StateDir(state)


def test_file_that_no_other_user_could_reach_is_closed(state: Path) -> None:
    """A program that ran under another umask made it."""
    (state / "meta.db").chmod(0o664)

    StateDir(state)

    assert stat.S_IMODE((state / "meta.db").stat().st_mode) == 0o644


def test_own_state_is_accepted_again(state: Path) -> None:
    """Under any umask of the caller."""
    before = _listing(state)
    mask = os.umask(0)
    try:
        StateDir(state).keep_holder("another")
    finally:
        os.umask(mask)

    assert _listing(state) == before
