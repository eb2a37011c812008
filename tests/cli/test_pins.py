"""The pins command, which lists the pins of a real mount."""

import json
import os
from typing import Any

import pytest

from s3fs_meta.cli import pins
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.limits import GIB, MIB
from s3fs_meta.mount.existing.targets import Target
from tests.cli.conftest import Place
from tests.programs import Program

pytestmark = pytest.mark.mount


def test_pins_command_shows_the_cached_bytes_of_each_pin(program: Program, mounted: Place) -> None:
    """The list of pins contains the new name of a renamed path, and omits a removed path."""
    mnt = mounted.mountpoint
    assert "nothing is pinned" in program.ok("pins", mnt)
    (mnt / "top").mkdir()
    (mnt / "top" / "f").write_bytes(os.urandom(2 * MIB))
    (mnt / "gone").write_bytes(b"x")
    (mnt / "empty").mkdir()
    program.ok("flush", mnt)
    program.ok("warm", "--pin", mnt / "top", mnt / "gone", mnt / "empty")
    (mnt / "top").rename(mnt / "new name")
    (mnt / "gone").unlink()

    assert json.loads(program.ok("pins", "--json", mnt)) == {
        "pins": [
            {"path": f"{mnt}/new name", "total_bytes": 2 * MIB, "cached_bytes": 2 * MIB},
            {"path": f"{mnt}/empty", "total_bytes": 0, "cached_bytes": 0},
        ],
        "left_out": 0,
        "pinned_bytes": 2 * MIB + 1,
        "pinned_bytes_max": 10 * GIB - 10 * GIB // 8,
        "over_bytes": 0,
        "last_error": "",
    }
    assert program.ok("pins", mnt) == (
        f"    2 MiB  all cached  {mnt}/new name\n"
        f"      0 B  all cached  {mnt}/empty\n"
        "pins use 2 MiB of at most 8.75 GiB\n"
    )
    assert ", 2 MiB pinned" in program.ok("status", mnt)


def test_root_directory_can_be_pinned(program: Program, mounted: Place) -> None:
    program.ok("warm", "--pin", mounted.mountpoint)
    found = json.loads(program.ok("pins", "--json", mounted.mountpoint))["pins"]
    assert [one["path"] for one in found] == [str(mounted.mountpoint)]


def test_pins_command_error_names_a_damaged_list_of_pins(program: Program, place: Place) -> None:
    """A mount ignores a damaged list of pins.

    The pins command prints the path of the list and a remedy.
    """
    program.ok("mount", place.url, place.mountpoint)
    state = next(path.parent for path in program.cachedir.glob("*/control.sock"))
    program.ok("umount", place.mountpoint)
    (state / "pins").write_text("{")
    program.ok("mount", place.url, place.mountpoint)
    done = program.run("pins", place.mountpoint)

    assert done.returncode == ExitStatus.SETTINGS
    assert f"{state}/pins" in done.stderr
    assert "remove the file" in done.stderr
    program.ok("umount", place.mountpoint)


def test_command_in_the_error_of_a_download_is_complete(
    program: Program,
    mounted: Place,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error of a damaged row suggests fsck without the URL and the cachedir."""

    async def answer(_place: Target) -> dict[str, Any]:
        return {"pins": [], "last_error": "a row is damaged; unmount, and run s3fs-meta fsck -y"}

    monkeypatch.setattr(pins, "request_pins", answer)

    pins.pins(mounted.mountpoint, program.cachedir, json=True)

    shown = json.loads(capsys.readouterr().out)["last_error"]
    where = f"--cachedir {program.cachedir} {mounted.url}"
    assert shown == f"a row is damaged; unmount, and run s3fs-meta fsck -y {where}"


def test_pins_command_on_an_unmounted_filesystem_fails(program: Program, place: Place) -> None:
    assert program.run("pins", place.mountpoint).returncode == ExitStatus.NOT_MOUNTED
