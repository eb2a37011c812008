"""The set command, which changes settings of a real mount."""

import json
import os

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.limits import MIB
from tests.cli.conftest import Place
from tests.programs import Program

pytestmark = pytest.mark.mount


def test_set_command_without_values_lists_the_settings(program: Program, mounted: Place) -> None:
    found = json.loads(program.ok("set", "--json", mounted.mountpoint))["settings"]

    assert {one["name"]: one["value"] for one in found} == {
        "cachesize": "10G",
        "upload_limit": "off",
        "download_limit": "off",
    }
    assert "cachesize" in program.ok("set", mounted.mountpoint)


def test_smaller_cache_size_set_by_the_user_evicts_blocks_immediately(
    program: Program, mounted: Place
) -> None:
    """If the cache size is reduced, uploaded blocks are evicted until the cache fits."""
    content = os.urandom(80 * MIB)
    (mounted.mountpoint / "f").write_bytes(content)
    program.ok("flush", mounted.mountpoint)
    found = json.loads(program.ok("set", "--json", mounted.mountpoint, "cachesize=64M"))

    assert found["evicted_bytes"] >= 16 * MIB
    assert found["over_bytes"] == 0
    figures = program.status(mounted.mountpoint)["cache"]
    assert figures["bytes"] <= figures["bytes_max"] == 64 * MIB
    program.ok("set", mounted.mountpoint, "cachesize=1G")
    assert program.status(mounted.mountpoint)["cache"]["bytes_max"] == 1024 * MIB
    assert (mounted.mountpoint / "f").read_bytes() == content


def test_upload_limit_can_be_changed_while_mounted(program: Program, mounted: Place) -> None:
    """If the new upload limit is a timetable, set also prints the limit that applies now."""
    line = "upload_limit=00:00,512K 23:59,512K"
    found = json.loads(program.ok("set", "--json", mounted.mountpoint, line))["settings"]
    shown = {one["name"]: one for one in found}["upload_limit"]

    assert shown["value"] == "00:00,512K 23:59,512K"
    assert shown["bytes_per_s"] == 512 << 10
    assert shown["mounted_with"] == "off"
    assert "now 512 KiB/s" in program.ok("set", mounted.mountpoint)
    program.ok("set", mounted.mountpoint, "upload_limit=1K")
    (mounted.mountpoint / "f").write_bytes(os.urandom(MIB))
    program.ok("flush", mounted.mountpoint)  # A flush ignores the upload limit, so it ends soon.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cachesize"], "write NAME=VALUE"),
        (["dropcache"], "run s3fs-meta dropcache MOUNTPOINT"),
        (["cachsize=1G"], "did you mean 'cachesize'?"),
        (["commit=1"], "option 'commit' cannot be set while mounted; these can: cachesize"),
        (["cachesize=1M"], "below the minimum"),
        (["upload_limit=fast"], "is not a rate"),
        (["cachesize=1G", "upload_limit=fast"], "is not a rate"),
    ],
)
def test_set_command_with_a_wrong_setting_changes_nothing(
    program: Program, mounted: Place, words: list[str], message: str
) -> None:
    """If one setting is wrong, set prints a one-line error and applies none of the settings."""
    done = program.run("set", mounted.mountpoint, *words)

    assert done.returncode == ExitStatus.USAGE
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    found = json.loads(program.ok("set", "--json", mounted.mountpoint))["settings"]
    assert all(one["value"] == one["mounted_with"] for one in found)


def test_set_command_error_names_a_missing_mountpoint(program: Program) -> None:
    refused = program.run("set", "cachesize=2G")
    assert refused.returncode == ExitStatus.USAGE
    assert "s3fs-meta set MOUNTPOINT cachesize=2G" in refused.stderr


def test_set_command_on_an_unmounted_filesystem_fails(program: Program, place: Place) -> None:
    assert program.run("set", place.mountpoint).returncode == ExitStatus.NOT_MOUNTED
