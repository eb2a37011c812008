"""Tests of the browse command's arguments; tests/browse tests its pages."""

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.programs import Program


def test_browse_command_refuses_an_address_other_than_loopback(
    program: Program, place: Place
) -> None:
    refused = program.run("browse", "--listen", "0.0.0.0:0", place.url)
    assert refused.returncode == ExitStatus.SETTINGS
    assert "served to this host only" in refused.stderr


def test_browse_command_refuses_a_bucket_without_a_filesystem(
    program: Program, empty: Place
) -> None:
    empty.bucket.mkdir()
    refused = program.run("browse", empty.url)
    assert refused.returncode == ExitStatus.NO_FILESYSTEM
