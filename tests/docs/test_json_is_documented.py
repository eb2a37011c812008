"""Tests that the page about JSON output matches the output of the commands."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from s3fs_meta.cli.entry import COMMANDS
from tests.cli.conftest import Place
from tests.docs.pages import ROOT
from tests.programs import Program

_PAGE: Final = ROOT / "docs" / "reference" / "json.md"
_ELSEWHERE: Final = {"status", "fsck"}  # Commands whose JSON output other pages describe.
_COUNTED: Final = {"causes"}  # JSON objects whose field names are data, such as causes of requests.


def _sections() -> dict[str, str]:
    """Return the page's text about each command."""
    _, *parts = re.split(r"^## ", _PAGE.read_text(), flags=re.MULTILINE)
    return {part.split("\n", 1)[0]: part for part in parts}


def _names(value: Any, *, counted: bool = False) -> Iterator[str]:
    """Yield the names of all fields in a JSON value."""
    if isinstance(value, list):
        for one in value:
            yield from _names(one)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if not counted:
                yield name
            yield from _names(inner, counted=name in _COUNTED)


def _require_names(program: Program, command: str, *words: str | Path) -> None:
    """Run a command with --json, and check that its section names each field of the output."""
    found = json.loads(program.ok(command, "--json", *words, here=command != "bench"))
    missing = {name for name in _names(found) if f"`{name}`" not in _sections()[command]}
    assert missing == set(), command


def test_page_has_a_section_for_each_command_with_json_output(program: Program) -> None:
    with_json = {
        name for name in COMMANDS if "--json" in program.run(name, "--help", here=False).stdout
    }

    assert set(_sections()) == with_json - _ELSEWHERE


@pytest.mark.mount
def test_page_names_each_field_of_commands_on_a_mount(program: Program, mounted: Place) -> None:
    top, url = mounted.mountpoint, mounted.url
    (top / "d").mkdir()
    (top / "d" / "f").write_bytes(b"x" * 5000)
    for command, words in (
        ("flush", (top,)),
        ("warm", (top / "d",)),
        ("warm", ("--pin", top / "d")),
        ("pins", (top,)),
        ("unpin", (top / "d",)),
        ("dropcache", (top,)),
        ("set", (top,)),
        ("clone", (top / "d", top / "e")),
        ("clone", ("--at=now", top / "d", top / "e2")),
        ("lock", (top / "e",)),
        ("rm", ("--locked", top / "e")),
        ("keep", (top, "one")),
        ("keep", (top, "--list")),
        ("keep", (top, "--expire", "--keep-last", "1")),
        ("keep", (top, "--drop", "one")),
        ("log", (url,)),
        ("versions", (top / "d" / "f",)),
        ("versions", ("--pattern", top / "d" / "*")),
        ("diff", (url, "txg=0")),
        ("reclaim", (top,)),
        ("retention", (url,)),
        ("cost", (top,)),
    ):
        _require_names(program, command, *words)


@pytest.mark.mount
def test_page_names_each_field_of_commands_on_an_unmounted_filesystem(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    (mounted.mountpoint / "f").write_bytes(b"x" * 5000)
    program.ok("umount", mounted.mountpoint)
    url = mounted.url

    _require_names(program, "bench", tmp_path, "--big-size", "0", "--files", "1")
    _require_names(program, "restore", "--to", tmp_path / "copy", url)
    _require_names(program, "recover-state", url)
    _require_names(program, "rollback", "--yes", "--at", "txg=1", url)
    _require_names(program, "destroy", "--confirm", url, url)
    _require_names(program, "mkfs", "--plain", f"local://{tmp_path}/new")
