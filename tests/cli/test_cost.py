"""The cost command, which reports the cost of requests and storage."""

import json
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.programs import Program


@pytest.mark.mount
def test_cost_command_reports_the_requests_of_a_mount(program: Program, mounted: Place) -> None:
    """The cost command reports a mount's request counts during the mount and after the unmount."""
    (mounted.mountpoint / "f").write_bytes(b"x" * 5000)
    program.ok("flush", mounted.mountpoint)

    found = json.loads(program.ok("cost", "--json", mounted.mountpoint))
    text = program.ok("cost", mounted.mountpoint)
    assert " <0.0001 " in text
    assert "e-0" not in text
    program.ok("umount", mounted.mountpoint)
    later = json.loads(program.ok("cost", "--json", mounted.url))

    causes = found["last_30_days"]["causes"]
    assert causes["data"]["put"] == 1
    assert causes["data"]["cost"] == pytest.approx(0.000005)
    assert found["prices"]["currency"] == "USD"
    assert found["per_month"] is None  # Requests have been counted for less than an hour.
    assert "AWS S3 Standard" in text
    assert "packs of data" in text
    assert later["last_30_days"]["causes"]["lease"]["put"] == causes["lease"]["put"] + 1


@pytest.mark.mount
def test_cost_command_reads_prices_from_a_file(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    free = Path("s3fs_meta/mount/statistics/aws-s3-standard.toml").read_text()
    (tmp_path / "free.toml").write_text(free.replace("0.005", "0").replace("0.0004", "0"))
    words = ("cost", "--json", "--prices", tmp_path / "free.toml", mounted.mountpoint)
    causes = json.loads(program.ok(*words))["last_30_days"]["causes"]
    assert sum(one["requests"] for one in causes.values()) > 0
    assert sum(one["cost"] for one in causes.values()) == 0

    (tmp_path / "free.toml").write_text(free.replace("put = 0.005", "put = -1"))
    done = program.run(*words)
    assert done.returncode == ExitStatus.USAGE
    assert "[requests] put must be a price" in done.stderr


def test_cost_command_exits_with_3_if_no_requests_were_counted(
    program: Program, place: Place
) -> None:
    done = program.run("cost", place.url)
    assert done.returncode == ExitStatus.SETTINGS
    assert place.url in done.stderr


def test_cost_command_exits_with_8_if_the_path_is_not_mounted(
    program: Program, tmp_path: Path
) -> None:
    assert program.run("cost", tmp_path).returncode == ExitStatus.NOT_MOUNTED


@pytest.mark.parametrize("url", ["http://x/y", "local://relative", "s3://"])
def test_cost_command_refuses_an_invalid_url(program: Program, url: str) -> None:
    """The error for an uncounted URL would advise to mount it, which is impossible."""
    done = program.run("cost", url)
    assert done.returncode == ExitStatus.USAGE
    assert url in done.stderr
