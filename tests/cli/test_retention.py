"""The retention command, which reports or changes the retention."""

import json

import pytest

from tests.cli.conftest import Place
from tests.programs import Program


def test_retention_is_seven_days_by_default_and_can_be_changed(
    program: Program, place: Place
) -> None:
    """The default retention is 7 days. The command stores a new value in the superblock."""
    assert program.ok("retention", place.url) == "7d\n"
    assert program.ok("retention", place.url, "36h") == "36h\n"
    shown = json.loads(program.ok("retention", "--json", place.url))
    assert shown == {"url": place.url, "retention_s": 36 * 3600}
    assert program.ok("retention", place.url, "0") == "0\n"


def test_mkfs_sets_the_retention(program: Program, empty: Place) -> None:
    made = json.loads(program.ok("mkfs", "--plain", "--retention", "30d", "--json", empty.url))
    assert made["retention_s"] == 30 * 86_400
    assert program.ok("retention", empty.url) == "30d\n"


@pytest.mark.slow
def test_changing_the_retention_of_an_encrypted_filesystem_requires_the_passphrase(
    program: Program, empty: Place
) -> None:
    """A wrong passphrase does not change the retention of an encrypted filesystem."""
    program.environment["S3FS_META_PASSPHRASE"] = "one"
    program.ok("mkfs", empty.url)
    program.ok("retention", empty.url, "1d")
    program.environment["S3FS_META_PASSPHRASE"] = "two"
    assert program.run("retention", empty.url, "0").returncode == 4
    assert program.ok("retention", empty.url) == "1d\n"


def test_retention_command_refuses_an_invalid_time(program: Program, place: Place) -> None:
    """The error about an invalid retention contains an example of a valid time."""
    refused = program.run("retention", place.url, "soon")
    assert refused.returncode == 2
    assert "7d" in refused.stderr


def test_retention_without_a_unit_is_refused(program: Program, place: Place) -> None:
    """The user may mean 30 days. If this meant 30 seconds, the history would be deleted."""
    for text in ("30", "0.5"):
        refused = program.run("retention", place.url, text)
        assert (refused.returncode, f"write for example retention={text}d" in refused.stderr) == (
            2,
            True,
        )
    assert program.ok("retention", place.url) == "7d\n"
    assert program.ok("retention", place.url, "30s") == "30s\n"
