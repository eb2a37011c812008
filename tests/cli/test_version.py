"""The version command, which prints the versions of the program and its libraries."""

import json

import pytest

from s3fs_meta.cli import entry


def test_version_command_lists_program_and_library_versions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert entry.main(["version", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert {"s3fs-meta", "format", "Python", "Linux", "pyfuse3", "apsw"} <= found.keys()
    assert all(found.values())
