"""The diff command, which lists changes between two points in time."""

import json
from pathlib import Path
from typing import Any

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.programs import Program


def differences(program: Program, *words: str | Path) -> dict[str, tuple[Any, ...]]:
    """Run the diff command with JSON output, and return the differences by path."""
    found = json.loads(program.ok("diff", "--json", *words))["differences"]
    return {
        one["path"]: (one["kind"], one["former_path"], one["before_bytes"], one["after_bytes"])
        for one in found
    }


@pytest.mark.mount
def test_diff_lists_changes_between_two_points_in_time(program: Program, mounted: Place) -> None:
    mnt = mounted.mountpoint
    (mnt / "d" / "below").mkdir(parents=True)
    for name in ("kept", "changed", "removed", "old name", "d/below/f", "mode"):
        (mnt / name).write_bytes(b"x" * 10)
    program.ok("flush", mnt)
    (mnt / "changed").write_bytes(b"x" * 2000)
    (mnt / "removed").unlink()
    (mnt / "old name").rename(mnt / "new name")
    (mnt / "d").rename(mnt / "e")
    (mnt / "mode").chmod(0o600)
    (mnt / "kept").read_bytes()
    program.ok("flush", mnt)
    (mnt / "added").write_bytes(b"123")
    program.ok("flush", mnt)

    everything = differences(program, mounted.url, "txg=2")
    printed = program.ok("diff", mnt, "txg=2", "txg=3").splitlines()
    totals = json.loads(program.ok("diff", "--stat", "--json", mnt, "txg=2"))

    assert everything == {
        "added": ("added", None, None, 3),
        "changed": ("changed", None, 10, 2000),
        "removed": ("removed", None, 10, None),
        "new name": ("renamed", "old name", 10, 10),
        "e": ("renamed", "d", 1, 1),
        "mode": ("attributes", None, 10, 10),
    }
    assert [line.split()[0] for line in printed] == ["M", "R", "A", "R", "-", "1"]
    assert "old name -> new name" in printed[3]
    assert "d/ -> e/" in printed[1]
    assert differences(program, mounted.url, "txg=2", "newest", "e") == {"e": everything["e"]}
    assert differences(program, mounted.url, "txg=3", "txg=3") == {}
    assert program.ok("diff", mounted.url, "txg=3", "txg=3") == "no differences\n"
    assert "differences" not in totals
    assert differences(program, mnt / "d", "txg=2") == {"e": everything["e"]}
    refused = program.run("diff", mnt / "nothing", "txg=2")
    assert refused.returncode == ExitStatus.USAGE
    assert "'nothing' exists at neither point in time" in refused.stderr
    assert totals["totals"]["added"] == totals["totals"]["removed"] == 1


@pytest.mark.mount
def test_diff_command_refuses_two_points_in_time_in_reverse_order(
    program: Program, mounted: Place
) -> None:
    (mounted.mountpoint / "f").touch()
    program.ok("flush", mounted.mountpoint)
    refused = program.run("diff", mounted.url, "txg=2", "txg=1")
    assert refused.returncode == ExitStatus.USAGE
    assert "txg=2 is later than txg=1" in refused.stderr
