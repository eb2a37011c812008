"""The browse command; tests/browse has the pages."""

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.programs import Program


def test_address_beyond_loopback_is_refused(program: Program, place: Place) -> None:
    refused = program.run("browse", "--listen", "0.0.0.0:0", place.url)
    assert refused.returncode == ExitStatus.SETTINGS
    assert "for this host only" in refused.stderr


def test_bucket_without_a_filesystem_is_refused(program: Program, empty: Place) -> None:
    empty.bucket.mkdir()
    refused = program.run("browse", empty.url)
    assert refused.returncode == ExitStatus.NO_FILESYSTEM
