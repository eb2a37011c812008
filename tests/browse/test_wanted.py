"""The commands that bring a file back."""

import html
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from s3fs_meta.browse.source import Source
from s3fs_meta.browse.wanted import commands
from s3fs_meta.model import Txg
from s3fs_meta.mount.targets import Target
from tests.browse.serving import Served

PLACE = Target("s3://bucket/home", Path("/state"), "/mnt/my home", mounted=True)


def _commands(place: Target, path: bytes) -> list[str]:
    source = cast("Source", SimpleNamespace(place=place))
    return [command for _text, command in commands(source, Txg(42), path)]


def test_in_a_mount_the_past_is_cloned_under_a_new_name() -> None:
    """The directory of the file may be gone, so the copy is at the top of the mount."""
    restore = "s3fs-meta restore --at txg=42 --to restored s3://bucket/home"
    assert _commands(PLACE, b"reports/old") == [
        "s3fs-meta clone --at=txg=42 '/mnt/my home/reports/old' '/mnt/my home/old.txg-42'",
        f"{restore} reports/old",
    ]
    assert _commands(PLACE, b"") == [restore]
    assert _commands(PLACE._replace(mounted=False), b"old") == [f"{restore} old"]


@pytest.mark.mount
def test_commands_to_bring_a_file_back_are_shown(served: Served) -> None:
    page = html.unescape(served.page("/at/2/reports/old%20name"))
    assert "s3fs-meta restore --at txg=2 --to restored local://" in page
    assert "'reports/old name'" in page


def test_path_in_a_command_is_no_option_and_is_quoted() -> None:
    source = cast("Source", SimpleNamespace(place=Target("local:///a b", Path("/state"))))
    _, line = commands(source, Txg(2), b"-rf $(x)")[-1]
    assert line == "s3fs-meta restore --at txg=2 --to restored 'local:///a b' './-rf $(x)'"
