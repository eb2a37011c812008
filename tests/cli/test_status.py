"""The status command, which reports the state and the statistics of a mount."""

import json
import math
import os
from pathlib import Path

import pytest

from s3fs_meta.cli import status_view
from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.programs import Program


def test_status_of_a_url_is_read_from_the_bucket(program: Program, place: Place) -> None:
    found = program.status(place.url)

    assert found["label"] == "photos"
    assert found["state"] == "free"
    assert found["txg"] == found["image"]["txg"] == 0
    assert found["image"]["pieces"] == 1


def test_status_shows_the_image_of_an_encrypted_filesystem_only_with_the_passphrase(
    program: Program, empty: Place
) -> None:
    """Without the passphrase, status omits the details of the image."""
    program.environment["S3FS_META_PASSPHRASE"] = "x"
    program.ok("mkfs", empty.url)
    del program.environment["S3FS_META_PASSPHRASE"]

    found = program.status(empty.url)

    assert found["encrypted"] is True
    assert found["image"] is None


def test_status_exits_with_5_for_a_missing_filesystem(program: Program, tmp_path: Path) -> None:
    """The exit status for a missing filesystem differs from that for an unreachable store."""
    assert program.run("status", f"local://{tmp_path}").returncode == 5


def test_status_exits_with_8_if_the_path_is_not_mounted(program: Program, tmp_path: Path) -> None:
    """The error of the status command names the path that is not mounted."""
    done = program.run("status", tmp_path)

    assert done.returncode == 8
    assert str(tmp_path) in done.stderr


@pytest.mark.mount
def test_status_finds_a_mount_by_path_or_url_and_lists_all_mounts(
    program: Program, unsent: Place
) -> None:
    (unsent.mountpoint / "f").write_bytes(b"x" * 5000)

    by_path = program.status(unsent.mountpoint)
    by_url = program.status(unsent.url)
    listed = json.loads(program.ok("status", "--json", here=False))["mounts"]
    lines = program.ok("status", here=False)
    tables = program.ok("status", "--all", here=False)

    assert f"{unsent.url} on {unsent.mountpoint}: serving" in lines
    assert "chain mark" not in lines
    assert "chain mark" in tables
    assert by_path["state"] == by_url["state"] == "serving"
    assert by_path["inodes"] == 2
    assert by_path["file_bytes"] == 5000
    assert by_path["cache"]["dirty_bytes"] == 5000
    assert by_path["pid"] in [one.get("pid") for one in listed]


def test_status_prints_sizes_with_units() -> None:
    """The status command prints sizes with binary units, and omits fields without a value."""
    rows = status_view.table_rows(
        {"a_bytes": 2048, "image": {"last_ns": 0, "x": None}, "ro": True, "store": {"get": {}}}
    )

    assert rows == {"a": "2 KiB", "image last": "never", "ro": "yes"}


def test_status_prints_a_label_for_each_size() -> None:
    """Each printed size has a label in words; a capacity of 0 is "unlimited"."""
    rows = status_view.table_rows({"file_bytes": 1, "capacity_bytes": 0, "cache": {"bytes": 2}})

    assert rows == {"size of all files": "1 B", "capacity": "unlimited", "cache used": "2 B"}


UPLOADING = {"pending_bytes": 3 << 20, "sent_bytes_per_s": 1 << 20, "left_s": 6.0, "last_error": ""}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "3 MiB left, 1 MiB/s, about 6 s"),
        ({"sent_bytes_per_s": None, "left_s": None}, "3 MiB left"),
        ({"last_error": "refused"}, "3 MiB left, waits for the bucket"),
        ({"pending_bytes": 0}, "nothing to upload"),
    ],
)
def test_status_shows_the_upload_speed_and_remaining_time(
    changed: dict[str, object], expected: str
) -> None:
    assert status_view.shown_upload(UPLOADING | changed) == expected


def test_status_shows_each_outage_only_once() -> None:
    """Status prints the reason for an outage only once, in the line with the mount's state."""
    part = {"last_error": ""}
    figures = dict.fromkeys(("upload", "chain", "image", "compaction", "reclaim"), part) | {
        "state": "serving",
        "at": None,
        "read_only": False,
        "why": "",
        "offline": "",
        "follow": {"last_error": "another reason"},
        "upload": {"last_error": "store unavailable for 'pack/1': connection refused"},
        "outage": {"age_s": 25.0, "why": "connection refused", "silent_s": 0.0},
    }

    shown = "serving, bucket unavailable for 25 s: connection refused"
    assert status_view.state_of(figures) == shown
    assert status_view.errors_of(figures) == {"error of follow": "another reason"}


def test_status_prints_latency_quantiles() -> None:
    """Status prints quantiles; only its JSON output contains the latency histograms."""
    counts = {"counts": [9, 90, 0, 1], "total_s": 1.0}
    times = {"bounds_s": [0.001, 0.002, 0.1], "operations": {"read": counts}, "waiting": 0}

    rows = status_view.table_rows({"latency": times})

    assert rows == {"latency of read": "p50 1.5 ms, p99 2 ms, 100 requests"}
    assert status_view.shown_latency(math.inf) == "over 100 s"


@pytest.mark.mount
def test_status_reports_the_age_of_the_last_image_even_after_an_unmount(
    program: Program, mounted: Place
) -> None:
    """The status command reports the same time of the last image before and after an unmount."""
    made_ns = program.status(mounted.mountpoint)["image"]["last_ns"]
    program.ok("umount", mounted.mountpoint)

    assert made_ns == program.status(mounted.url)["image"]["last_ns"] > 0


@pytest.mark.mount
def test_status_hides_the_compression_ratio_until_all_blocks_are_uploaded(
    program: Program, mounted: Place
) -> None:
    """The upload limit keeps the blocks pending until flush, which ignores the limit."""
    program.ok("set", mounted.mountpoint, "upload_limit=1K")
    (mounted.mountpoint / "f").write_bytes(os.urandom(3 << 20))
    before = program.status(mounted.mountpoint)
    program.ok("flush", mounted.mountpoint)
    after = program.status(mounted.mountpoint)

    assert before["upload"]["pending_blocks"] > 0
    assert before["compression_ratio"] is None
    assert after["compression_ratio"] == pytest.approx(
        after["block_bytes"] / after["stored_bytes"], abs=0.001
    )


@pytest.mark.mount
def test_status_output_fits_on_one_screen_and_starts_with_the_mount_state(
    program: Program, mounted: Place
) -> None:
    (mounted.mountpoint / "f").write_bytes(b"x" * 5000)

    lines = [line.split() for line in program.ok("status", mounted.mountpoint).splitlines()]

    assert lines[0] == ["state", "serving"]
    assert len(lines) <= 24  # A terminal has 24 lines.
    everything = program.ok("status", "--all", mounted.mountpoint)
    assert "requests getattr" in everything
    assert ["requests", "getattr"] not in [line[:2] for line in lines]


@pytest.mark.mount
def test_status_check_uses_the_exit_statuses_of_a_monitoring_plugin(
    program: Program, unsent: Place
) -> None:
    good = program.run("status", "--check", "--max-pending", "1G", unsent.mountpoint)
    no_room = program.run("status", "--check", "--min-free", "100%", unsent.mountpoint)
    # The mount uploads the file after SEAL_LINGER_S.
    (unsent.mountpoint / "f").write_bytes(b"x" * 5000)
    doubtful = program.run("status", "--check", "--max-pending", "1000", unsent.mountpoint)
    program.kill(unsent.mountpoint)
    killed = program.run("status", "--check", unsent.mountpoint)
    program.run("umount", unsent.mountpoint)
    absent = program.run("status", "--check", unsent.url)

    checks = (good, no_room, doubtful, killed, absent)
    lines = [done.stdout for done in checks]
    assert [done.returncode for done in checks] == [0, 1, 1, 2, 2]
    assert [len(text.splitlines()) for text in lines] == [1] * 5
    assert [text.split(":")[0] for text in lines] == ["OK", "WARNING", "WARNING", *["CRITICAL"] * 2]
    assert "5000 bytes are only on this host | age=" in doubtful.stdout
    assert "pending=5000B;1000 free=" in doubtful.stdout
    assert "was killed (only on this host: 4.88 KiB in 1 block" in killed.stdout


@pytest.mark.mount
def test_status_check_reports_unknown_for_a_mount_that_it_cannot_query(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """The check may run as another user or with another --cachedir while the mount is healthy."""
    elsewhere = Program(tmp_path / "other-state")
    done = elsewhere.run("status", "--check", mounted.url)
    assert (done.returncode, done.stdout.split(":")[0]) == (3, "UNKNOWN")
    assert "--cachedir" in done.stdout


def test_status_check_reports_a_missing_mount_as_critical(program: Program, place: Place) -> None:
    done = program.run("status", "--check", place.url)
    assert (done.returncode, done.stdout.split(":")[0]) == (2, "CRITICAL")


@pytest.mark.parametrize(
    "words", [("--min-free", "101"), ("--max-age", "-1"), ("--max-pending", "much")]
)
def test_status_check_refuses_an_invalid_limit(
    program: Program, place: Place, words: tuple[str, str]
) -> None:
    done = program.run("status", "--check", *words, place.url)
    assert done.returncode == ExitStatus.USAGE
    assert words[0] in done.stderr


def test_status_check_reports_an_unmounted_path_as_critical(
    program: Program, tmp_path: Path
) -> None:
    """A monitoring program accepts only the statuses 0 to 3 and reads only standard output."""
    done = program.run("status", "--check", tmp_path)
    assert done.returncode == 2
    assert done.stdout.startswith(
        f"CRITICAL: no s3fs-meta filesystem is mounted on {tmp_path}; s3fs-meta status lists"
    )


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("--max-age", "5m"), "--max-age needs --check"),
        (("--max-pending", "1G"), "--max-pending needs --check"),
        (("--min-free", "5%"), "--min-free needs --check"),
        (("--interval", "1s"), "--interval needs --watch"),
        (("--watch", "--max-age", "5m"), "--max-age needs --check"),
        (("--json", "--check"), "--check and --json cannot be combined"),
        (("--json", "--prometheus"), "--prometheus and --json cannot be combined"),
        (("--json", "--watch"), "--watch and --json cannot be combined"),
        (("--unshipped", "--check"), "--check and --unshipped cannot be combined"),
        (("--watch", "--prometheus"), "--prometheus and --watch cannot be combined"),
        (("--all", "--unshipped"), "--unshipped and --all cannot be combined"),
    ],
)
def test_status_refuses_options_that_would_have_no_effect(
    program: Program, tmp_path: Path, words: tuple[str, ...], refused: str
) -> None:
    done = program.run("status", *words, f"local://{tmp_path}")
    assert done.returncode == ExitStatus.USAGE
    assert refused in done.stderr
