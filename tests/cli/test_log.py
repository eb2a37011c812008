"""The log command, which lists the txgs of a filesystem."""

import json
import os
import shutil
from typing import Any

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.programs import Program


def txgs(program: Program, place: Place, *words: str, path: str = "") -> list[dict[str, Any]]:
    """Return the txgs that the log command prints as JSON."""
    found = json.loads(program.ok("log", "--json", *words, place.url, *filter(None, [path])))[
        "txgs"
    ]
    assert isinstance(found, list)
    return found


def test_log_command_lists_nothing_for_a_filesystem_that_was_never_mounted(
    program: Program, place: Place
) -> None:
    """The log command omits txg 0, which mkfs creates."""
    assert txgs(program, place) == []
    assert program.ok("log", place.url) == ""


def test_log_command_refuses_invalid_arguments(program: Program, place: Place) -> None:
    """For invalid times, paths and counts the log command exits with 2 or 3."""
    for words in (["--since", "x"], ["--until", "1999-01-01"], ["-n", "0"]):
        assert program.run("log", *words, place.url).returncode in {2, 3}
    for path in ("../x", "missing"):
        assert program.run("log", place.url, path).returncode == ExitStatus.USAGE
    assert program.run("log", "/").returncode == ExitStatus.NOT_MOUNTED


@pytest.mark.mount
def test_log_command_shows_the_txg_before_an_accidental_removal(
    program: Program, mounted: Place
) -> None:
    """On a mounted filesystem, the log command selects txgs by path, time and number."""
    mnt = mounted.mountpoint
    (mnt / "thesis").mkdir()
    (mnt / "thesis" / "draft").write_bytes(b"x" * 100_000)
    program.ok("flush", mnt)
    for number in range(3):
        (mnt / f"noise {number}").touch()
        program.ok("flush", mnt)
    shutil.rmtree(mnt / "thesis")
    program.ok("flush", mnt)

    everything = txgs(program, mounted)
    removed, made = txgs(program, mounted, path="/thesis/draft")
    states = os.listdir(program.cachedir)

    assert [one["txg"] for one in everything] == [6, 5, 4, 3, 2, 1]
    assert everything[-1]["kind"] == "fence"
    assert (removed["changes"]["removed"], made["changes"]["created"]) == (2, 2)
    assert made["stored_bytes"] > 0
    assert [one["txg"] for one in txgs(program, mounted, "-n", "2")] == [6, 5]
    between = ("--since", "txg=3", "--until", everything[2]["time"])
    assert [one["txg"] for one in txgs(program, mounted, *between)] == [4, 3]
    printed = program.ok("log", mnt / "thesis").splitlines()
    assert [line.split()[0] for line in printed] == ["6", "2"]
    assert "2 removed" in printed[0]
    assert len(states) == 1


@pytest.mark.mount
def test_log_command_refuses_a_range_that_ends_before_it_begins(
    program: Program, mounted: Place
) -> None:
    """An empty list would look as if nothing had changed."""
    for name in ("a", "b"):
        (mounted.mountpoint / name).touch()
        program.ok("flush", mounted.mountpoint)

    for since, until in (
        ("txg=3", "txg=2"),
        ("2100-01-01", "txg=2"),
        ("2100-01-01", "2099-01-01"),
    ):
        done = program.run("log", "--since", since, "--until", until, mounted.url)
        assert done.returncode == ExitStatus.USAGE, done.stdout
        assert f"--since {since} is later than --until {until}; exchange" in done.stderr
    assert [one["txg"] for one in txgs(program, mounted, "--since=txg=2", "--until=txg=2")] == [2]
    assert program.ok("log", "--since", "2100-01-01", mounted.url) == ""
