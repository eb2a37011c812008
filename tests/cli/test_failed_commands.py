"""A command that fails before it does anything leaves nothing behind."""

from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.programs import QuickProgram

COMMANDS = [
    ("fsck", "-n"),
    ("fsck", "-y"),
    ("reclaim",),
    ("rollback", "--at", "txg=1", "--yes"),
    ("restore", "--at", "txg=1", "--to", "TARGET"),
    ("recover-state",),
    ("status",),
    ("destroy", "--yes"),
    ("log",),
    ("mount", "--mkdir"),
    ("mount", "--mkdir", "-f"),
]


@pytest.fixture
def quick(tmp_path: Path) -> QuickProgram:
    """Return the command, whose state directories are below a directory that does not exist."""
    program = QuickProgram(tmp_path / "state")
    program.environment |= {
        "AWS_ACCESS_KEY_ID": "unknown",
        "AWS_SECRET_ACCESS_KEY": "wrong",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    return program


def completed(words: tuple[str, ...], url: str, folder: Path) -> list[str]:
    """Return a command line with the URL, and the mountpoint or target if the command has one."""
    found = [str(folder / "target") if word == "TARGET" else word for word in words]
    return [*found, url, *([str(folder / "mnt")] if words[0] == "mount" else [])]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("url", ["local://{}/mistyped", "locl://{}/store", "{}/store"])
def test_mistyped_url_leaves_nothing_behind(
    quick: QuickProgram, tmp_path: Path, words: tuple[str, ...], url: str
) -> None:
    """No directory of state, no mountpoint, no target of a restore, no store."""
    done = quick.run(*completed(words, url.format(tmp_path), tmp_path))

    # Without a quarantined state recover-state needs no store.
    assert done.returncode != 0 or words == ("recover-state",)
    assert [path for path in tmp_path.rglob("*") if path != quick.cachedir] == []


def test_path_in_place_of_a_url_is_answered_with_the_url(quick: QuickProgram, empty: Place) -> None:
    done = quick.run("fsck", "-n", str(empty.bucket))

    assert f"use local://{empty.bucket}" in done.stderr
