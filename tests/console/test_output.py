"""Tests of how commands print their results on standard output."""

import io
import json
import sys

import pytest
from typing_extensions import override

from s3fs_meta.console import output


class Terminal(io.StringIO):
    """A stream that acts as a terminal and records its output."""

    @override
    def isatty(self) -> bool:
        """Return true, because this stream is a terminal."""
        return True


def test_control_characters_are_escaped_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """File names are escaped only on a terminal, because scripts need the unchanged names."""
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        monkeypatch.setattr(sys, "stdout", stream)
        output.print_text("/a\x1b[2J")

    assert terminal.getvalue() == "/a\\x1b[2J\n"
    assert pipe.getvalue() == "/a\x1b[2J\n"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_json_rows_are_printed_inside_one_json_object(
    capsys: pytest.CaptureFixture[str], count: int
) -> None:
    value = {"url": "s3://b\n", "totals": {"added": count}}
    rows = [{"path": f"\n\u2028\udcff{at}", "size": None, "list": [at]} for at in range(count)]
    output.print_json_rows(value, "rows", iter(rows))
    printed = capsys.readouterr().out
    output.print_json({**value, "rows": rows})

    assert printed == capsys.readouterr().out
    assert json.loads(printed) == {**value, "rows": rows}


def test_tables_escape_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table({"na\x1bme": "value\x1b"})
    output.print_columns(("a", "b"), [("cell\x1b", "1\x1b")])

    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (5 << 40, "5 TiB"),
        (1020 << 10, "1020 KiB"),
        (999.6 * 2**20, "1000 MiB"),
    ],
)
def test_sizes_are_printed_with_binary_units(size_bytes: float, expected: str) -> None:
    assert output.human_bytes(size_bytes) == expected


def test_tables_print_brackets_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets in a table cell are printed, not interpreted as markup."""
    output.print_table({"name": "[red]x"})

    assert "[red]x" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("time_s", "expected"),
    [
        (0.0000004, "0.4 µs"),
        (0.0000312, "31 µs"),
        (0.00134, "1.3 ms"),
        (0.5, "500 ms"),
        (0.9999, "1 s"),
        (1.25, "1.2 s"),
        (42.4, "42 s"),
        (90, "2 min"),
        (3 * 3600 + 59, "3 h 1 min"),
    ],
)
def test_durations_are_printed_with_their_unit(time_s: float, expected: str) -> None:
    assert output.human_duration(time_s) == expected


@pytest.mark.parametrize("columns", ["40", "200"])
def test_table_row_longer_than_the_terminal_is_printed_in_full(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """A user can copy the name of a kept point from the list, even if it goes through a pipe."""
    monkeypatch.setenv("COLUMNS", columns)
    name, time = "auto-2026-11-26T15:44:20 (auto)", "2026-11-26T15:44:20.798+00:00"

    output.print_columns(("name", "time", "txg", "needed only by it"), [(name, time, "2", "0 B")])

    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "time", "txg", "needed", "only", "by", "it"]
    assert row.split() == [*name.split(), time, "2", "0", "B"]


@pytest.mark.parametrize("columns", ["20", "80"])
def test_table_in_a_pipe_has_one_line_for_each_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """A script can read the command of ``status`` from its line, however long the URL is."""
    monkeypatch.setenv("COLUMNS", columns)
    command = f"s3fs-meta mount s3://bucket/{'folder/' * 20} MOUNTPOINT"

    output.print_table({"only on this host": "nothing", "next": command})

    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["only", "on", "this", "host", "nothing"]
    assert second.split() == ["next", *command.split()]
