"""Tests of the commands that the browse pages suggest for restoring a file."""

import html
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from s3fs_meta.browse.pages.wanted import commands
from s3fs_meta.browse.sources.source import Source
from s3fs_meta.model import Txg
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.objects.urls import S3Options
from tests.browse.serving import Served

_AWS = S3Options()
PLACE = Target("s3://bucket/home", Path("/state"), "/mnt/my home", mounted=True)


def _commands(place: Target, path: bytes) -> list[str]:
    return [command for _text, command in commands(_source(place), Txg(42), path)]


def _source(place: Target, s3: S3Options = _AWS) -> Source:
    reading = SimpleNamespace(place=place, options=s3)
    return cast("Source", SimpleNamespace(place=place, reading=reading))


def test_clone_command_copies_a_past_version_of_a_file_to_a_new_name() -> None:
    """The target is in the mount's root because the original directory may no longer exist."""
    restore = "s3fs-meta restore --at txg=42 --to restored s3://bucket/home"
    assert _commands(PLACE, b"reports/old") == [
        "s3fs-meta clone --at=txg=42 '/mnt/my home/reports/old' '/mnt/my home/old.txg-42'",
        f"{restore} reports/old",
    ]
    assert _commands(PLACE, b"") == [restore]
    assert _commands(PLACE._replace(mounted=False), b"old") == [f"{restore} old"]


@pytest.mark.mount
def test_page_of_a_removed_file_shows_the_restore_command(served: Served) -> None:
    page = html.unescape(served.page("/at/2/reports/old%20name"))
    assert "s3fs-meta restore --at txg=2 --to restored local://" in page
    assert "'reports/old name'" in page


def test_path_in_a_suggested_command_is_quoted_and_cannot_be_parsed_as_an_option() -> None:
    source = _source(Target("local:///a b", Path("/state")))
    _, line = commands(source, Txg(2), b"-rf $(x)")[-1]
    assert line == "s3fs-meta restore --at txg=2 --to restored 'local:///a b' './-rf $(x)'"


@pytest.mark.parametrize(
    ("name", "length"), [(b"x" * 248, 255), (b"x" * 249, 255), (b"\xff" * 255, 255)]
)
def test_suggested_name_of_a_restored_copy_has_at_most_255_bytes(name: bytes, length: int) -> None:
    assert len(_back(name)) == length


def test_shortened_file_name_ends_with_a_complete_character() -> None:
    assert _back("é".encode() * 127) == "é".encode() * 124 + b".txg-42"


def _back(name: bytes) -> bytes:
    """Return the name of the copy in the clone command for an entry."""
    command = _commands(Target("local:///b", Path("/state"), "/m", mounted=True), name)[0]
    found = subprocess.run(
        ["bash", "-c", f"s3fs-meta() {{ printf '%s' \"$4\"; }}; {command}"],
        stdout=subprocess.PIPE,
        check=True,
    )
    return found.stdout.removeprefix(b"/m/")


def test_suggested_restore_command_includes_the_s3_options() -> None:
    place = Target("s3://bucket/home", Path("/state"))
    options = S3Options("http://127.0.0.1:7070", None, "photos")
    _, line = commands(_source(place, options), Txg(2), b"old")[0]
    expected = "--endpoint-url http://127.0.0.1:7070 --profile photos s3://bucket/home old"
    assert line == f"s3fs-meta restore --at txg=2 --to restored {expected}"
