"""Tests of the health of a mount, as reported to monitoring programs."""

from typing import Any

import pytest

from s3fs_meta.limits import MIB, OPERATION_DISK_BYTES
from s3fs_meta.mount.statistics.health import HealthLevel, Limits, exposure, judge, worst

STRICT = Limits(age_s=60, pending_bytes=1000, free_percent=5)


def figures(**changes: Any) -> dict[str, Any]:
    """Return the statistics of a healthy mount, with the given changes."""
    part = {"last_error": ""}
    found: dict[str, Any] = {
        "url": "s3://bucket/home",
        "mountpoint": "/mnt",
        "state": "serving",
        "why": "",
        "read_only": False,
        "disk": {"free_bytes": 1 << 30},
        "chain": {"unshipped_age_s": 1.0, **part},
        "kernel": {"age_s": 0.5},
        "upload": {"pending_bytes": 10, "lost_blocks": 0, **part},
    }
    found |= {name: dict(part) for name in ("image", "reclaim", "follow")}
    for name, value in changes.items():
        found[name] = found.get(name, {}) | value if isinstance(value, dict) else value
    return found


@pytest.mark.parametrize(
    ("changes", "level", "text"),
    [
        ({}, HealthLevel.OK, "the mount is serving"),
        ({"state": "following"}, HealthLevel.OK, "the mount is following"),
        ({"state": "ending"}, HealthLevel.WARNING, "the mount is ending"),
        (
            {"state": "fenced", "why": "host b took over"},
            HealthLevel.CRITICAL,
            "fenced: host b took over",
        ),
        ({"state": "degraded", "why": "disk"}, HealthLevel.CRITICAL, "degraded: disk"),
        (
            {"upload": {"lost_blocks": 2}},
            HealthLevel.CRITICAL,
            "2 blocks lost: unmount, and run s3fs-meta fsck -y s3://",
        ),
        ({"upload": {"last_error": "refused"}}, HealthLevel.WARNING, "upload: refused"),
        (
            {"outage": {"age_s": 25.2, "why": "refused", "silent_s": 0.0}},
            HealthLevel.WARNING,
            "bucket unavailable for 25 s: refused",
        ),
        (
            {"outage": {"age_s": 0.0, "why": "", "silent_s": 7.0}},
            HealthLevel.WARNING,
            "no response from the bucket for 7 s",
        ),
        (
            {"outage": {"age_s": 0.0, "why": "", "silent_s": 1.0}},
            HealthLevel.OK,
            "the mount is serving",
        ),
        (
            {"chain": {"unshipped_age_s": 61.0}},
            HealthLevel.WARNING,
            "changes up to 61 s old are only on this",
        ),
        (
            {"kernel": {"age_s": 99.0}},
            HealthLevel.WARNING,
            "changes up to 99 s old are only on this",
        ),
        (
            {"upload": {"pending_bytes": 1001}},
            HealthLevel.WARNING,
            "1001 bytes are only on this host",
        ),
    ],
)
def test_health_report_has_a_level_and_a_reason_for_each_problem(
    changes: dict[str, Any], level: HealthLevel, text: str
) -> None:
    found = judge(figures(**changes), 50.0, STRICT)
    assert found.level is level
    assert found.text.startswith(f"{level.name}: s3://bucket/home on /mnt: ")
    assert text in found.text


def test_nearly_full_disk_is_reported_as_a_problem() -> None:
    found = judge(figures(), 4.0, STRICT)
    assert found.level is HealthLevel.WARNING
    assert found.text.endswith("| age=1.0s;60 pending=10B;1000 free=4.0%;5:")


FULL = {"free_bytes": OPERATION_DISK_BYTES + MIB - 1}


def test_full_disk_is_critical_because_large_writes_fail() -> None:
    """A write needs its own size and the size of its changes to the database."""
    found = judge(figures(disk=FULL), 50.0, Limits())
    assert found.level is HealthLevel.CRITICAL
    assert "the local disk is full, and writes fail" in found.text


@pytest.mark.parametrize(
    "changes",
    [
        {"disk": {"free_bytes": OPERATION_DISK_BYTES + MIB}},
        {"disk": {"free_bytes": None}},
        {"disk": FULL, "read_only": True},
        {"disk": FULL, "state": "following"},
    ],
)
def test_disk_is_no_problem_if_writes_succeed_or_are_never_accepted(
    changes: dict[str, Any],
) -> None:
    assert judge(figures(**changes), 50.0, Limits()).level is HealthLevel.OK


def test_changes_waiting_for_upload_are_not_a_problem_without_a_limit() -> None:
    old = figures(chain={"unshipped_age_s": 1e6}, upload={"pending_bytes": 1 << 40})
    assert judge(old, 0.0, Limits()).level is HealthLevel.OK
    assert exposure(old) == (1e6, 1 << 40)


def test_mount_that_cannot_be_queried_does_not_hide_a_critical_mount() -> None:
    """The level UNKNOWN has a higher number than CRITICAL, but CRITICAL is reported."""
    by_severity = [
        HealthLevel.OK,
        HealthLevel.WARNING,
        HealthLevel.UNKNOWN,
        HealthLevel.CRITICAL,
    ]
    for length in range(1, 5):
        assert worst(by_severity[:length]) is by_severity[length - 1]
        assert worst(reversed(by_severity[:length])) is by_severity[length - 1]
