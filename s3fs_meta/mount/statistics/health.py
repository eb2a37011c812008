"""The health of a mount for monitoring programs: its statistics compared with the user's limits.

Owns: classifying a mount as OK, WARNING or CRITICAL by its statistics, and the output line.
Does not know: how the statistics are queried.
The levels are the exit statuses of monitoring plugins. The line ends with performance data.
Source: https://nagios-plugins.org/doc/guidelines.html, "Plugin Output", "Plugin Return Codes".
"""

import enum
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from s3fs_meta.counted import counted
from s3fs_meta.limits import MIB, OPERATION_DISK_BYTES
from s3fs_meta.mount.limits import SILENCE_SHOWN_S_MIN
from s3fs_meta.mount.requests.control_api import ENDING
from s3fs_meta.mount_state import MountState

# Free bytes below which the largest write of the kernel fails. Source: Linux, FUSE_MAX_MAX_PAGES,
# 256 pages.
FREE_BYTES_MIN: Final = OPERATION_DISK_BYTES + 1 * MIB

_IN_ORDER: Final = {MountState.SERVING.value, MountState.FOLLOWING.value}
_PASSING: Final = {MountState.STARTING.value, MountState.STOPPING.value, ENDING}


class HealthLevel(enum.IntEnum):
    """The health level of a mount; the value is the exit status."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


# The levels from best to worst. A mount that cannot be queried does not hide a critical mount.
_SEVERITY: Final = (
    HealthLevel.OK,
    HealthLevel.WARNING,
    HealthLevel.UNKNOWN,
    HealthLevel.CRITICAL,
)


def worst(levels: Iterable[HealthLevel]) -> HealthLevel:
    """Return the most severe of one or more levels."""
    return max(levels, key=_SEVERITY.index)


class Limits(NamedTuple):
    """The limits of a healthy mount; None means no limit."""

    age_s: float | None = None  # maximum age of a change that has not been uploaded
    pending_bytes: int | None = None  # maximum size of file data that has not been uploaded
    free_percent: float | None = None  # minimum free space on the disk of the cache


class MountHealth(NamedTuple):
    """The level of one mount, and the output line with its statistics."""

    level: HealthLevel
    text: str


class Exposure(NamedTuple):
    """The age and size of the changes that would be lost with this host."""

    age_s: float
    content_bytes: int


def exposure(figures: Mapping[str, Any]) -> Exposure:
    """Return the age and size of the changes that are not in the bucket."""
    age_s = max(figures["chain"]["unshipped_age_s"], figures.get("kernel", {}).get("age_s", 0.0))
    return Exposure(float(age_s), int(figures["upload"]["pending_bytes"]))


def away(figures: Mapping[str, Any]) -> str:
    """Return the duration and reason of an outage as text; empty if the bucket responds."""
    found = figures.get("outage", {})  # an older version of the daemon does not report outages
    if found.get("why"):
        return f"bucket unavailable for {found['age_s']:.0f} s: {found['why']}"
    if found.get("silent_s", 0.0) >= SILENCE_SHOWN_S_MIN:
        return f"no response from the bucket for {found['silent_s']:.0f} s"
    return ""


def full_disk(figures: Mapping[str, Any]) -> str:
    """Return a sentence if a full local disk prevents writes; otherwise return ""."""
    # An older version of the daemon does not report the disk.
    free_bytes = figures.get("disk", {}).get("free_bytes")
    is_writable = figures["state"] == MountState.SERVING.value and not figures["read_only"]
    if free_bytes is None or not is_writable or free_bytes >= FREE_BYTES_MIN:
        return ""
    return "the local disk is full, and writes fail: delete other files on the disk with the cache"


def judge(figures: Mapping[str, Any], free_percent: float, limits: Limits) -> MountHealth:
    """Return the health of a mount.

    Args:
        figures: the statistics of the mount, from ``request_status``.
        free_percent: percentage of free space on the disk that has the cache.
        limits: the limits that the user has chosen.
    """
    found = exposure(figures)
    state, broken, doubts = figures["state"], [], []
    if state in _PASSING:
        doubts.append(f"the mount is {state}")
    elif state not in _IN_ORDER:
        broken.append(f"the mount is {state}: {figures['why']}")
    if figures["upload"]["lost_blocks"]:
        lost = counted(figures["upload"]["lost_blocks"], "block")
        command = f"s3fs-meta fsck -y {shlex.quote(figures['url'])}"
        broken.append(f"{lost} lost: unmount, and run {command}")
    if full := full_disk(figures):
        broken.append(full)
    outage = away(figures)
    if outage:
        doubts.append(outage)
    doubts += [
        f"{part}: {figures[part]['last_error']}"
        for part in ("upload", "chain", "image", "reclaim", "follow")
        if figures[part]["last_error"]
    ]
    if limits.age_s is not None and found.age_s > limits.age_s:
        doubts.append(f"changes up to {found.age_s:.0f} s old are only on this host")
    if limits.pending_bytes is not None and found.content_bytes > limits.pending_bytes:
        doubts.append(f"{found.content_bytes} bytes are only on this host")
    if limits.free_percent is not None and free_percent < limits.free_percent:
        doubts.append(f"the disk with the cache has only {free_percent:.0f} % free")
    level = HealthLevel.CRITICAL if broken else HealthLevel.WARNING if doubts else HealthLevel.OK
    why = "; ".join(broken + doubts) or f"the mount is {state}"
    where = f"{figures['url']} on {figures['mountpoint']}"
    return MountHealth(
        level, f"{level.name}: {where}: {why} | {_data(found, free_percent, limits)}"
    )


def _data(found: Exposure, free_percent: float, limits: Limits) -> str:
    """Return the performance data of a monitoring plugin: each value with its threshold."""
    return (
        f"age={found.age_s:.1f}s;{_limit(limits.age_s)}"
        f" pending={found.content_bytes}B;{_limit(limits.pending_bytes)}"
        f" free={free_percent:.1f}%;{_limit(limits.free_percent, ':')}"
    )


def _limit(limit: float | None, after: str = "") -> str:
    return "" if limit is None else f"{limit:.15g}{after}"
