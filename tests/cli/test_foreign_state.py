"""Tests of commands whose --cachedir contains the state directory of another user."""

import os
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.state_paths import locate
from tests.cli.conftest import Place
from tests.programs import Program

OTHER_UID = 12345


def _listing(state: Path) -> list[tuple[str, int, int]]:
    found = [(str(path), path.lstat()) for path in [state, *state.rglob("*")]]
    return sorted((path, status.st_uid, status.st_mtime_ns) for path, status in found)


@pytest.mark.parametrize(
    "words",
    [
        ("log", "URL"),
        ("versions", "URL", "report"),
        ("diff", "URL", "txg=0"),
        ("restore", "--to", "restored", "URL"),
        ("browse", "URL"),
        ("retention", "URL"),
        ("keep", "URL", "--list"),
        ("reclaim", "--dry-run", "URL"),
        ("status", "URL"),
        ("mount", "URL", "mnt"),
    ],
)
def test_state_directory_of_another_user_is_refused_and_stays_unchanged(
    program: Program, place: Place, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Root creates no file in a user's state directory, because then the user could not mount."""
    if os.geteuid() != 0:
        pytest.skip("only root can open the state directory of another user")
    state = locate(place.url, program.cachedir)
    state.mkdir(parents=True, mode=0o700)
    (state / "meta.db").touch(mode=0o600)
    for path in (state / "meta.db", state):
        os.chown(path, OTHER_UID, OTHER_UID)
    before = _listing(state)
    paths = {"URL": place.url, "mnt": str(place.mountpoint), "restored": str(tmp_path / "to")}

    refused = program.run(*(paths.get(word, word) for word in words))

    assert refused.returncode == ExitStatus.SETTINGS
    assert f"'{state}' belongs to user {OTHER_UID}" in refused.stderr
    assert "choose another directory with --cachedir" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert _listing(state) == before
