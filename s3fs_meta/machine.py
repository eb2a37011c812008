"""The identity of this machine, its boot and its memory, which tests can replace.

Owns: the files that identify a machine, and the detection of containers. A container counts as an
unknown machine, because these files come from the container image or the host.
Does not know: the effect of another machine on a lease (``sync.lease.lease_proof``), or of another
boot on files (``sync.opening``).
Sources: machine-id(5), which requires that the value be hashed before it is published; SMBIOS 3.7,
"System Information", UUID; https://systemd.io/CONTAINER_INTERFACE; random(4) on boot_id;
Documentation/ABI/stable/sysfs-block on diskseq.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

# Paths of the host's identifiers; only tests change these constants.
MACHINE_ID = Path("/etc/machine-id")  # a cloned disk contains the machine-id of the original
# File with the identifier of the (virtual) hardware; only root can read the file.
PRODUCT_UUID = Path("/sys/class/dmi/id/product_uuid")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
BLOCK_DEVICES = Path("/sys/dev/block")
CONTAINER_MARKS = (
    Path("/.dockerenv"),
    Path("/run/.containerenv"),
    Path("/run/systemd/container"),
)
_CONTAINER_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST")
_BYTES_MAX = 128  # maximum size of an identifier; real identifiers have about 36 bytes


class Machine(NamedTuple):
    """The identifiers of a machine; an unknown identifier is None."""

    machine_id: str | None
    product_uuid: str | None


UNKNOWN = Machine(None, None)


def this_machine() -> Machine:
    """Return the identifiers of this machine, or UNKNOWN in a container."""
    if any(mark.exists() for mark in CONTAINER_MARKS) or any(
        os.environ.get(name) for name in _CONTAINER_VARIABLES
    ):
        return UNKNOWN
    return Machine(_read(MACHINE_ID), _read(PRODUCT_UUID))


def _read(path: Path) -> str | None:
    """Return the identifier in a file, or None if the file is unreadable or has no identifier."""
    try:
        with path.open("rb") as file:
            value = file.read(_BYTES_MAX).decode("ascii").strip().lower()
    except (OSError, UnicodeDecodeError):
        return None
    digits = value.replace("-", "")
    # Identifiers that are not unique: "uninitialized" (machine-id(5)), and UUIDs of all 0 or all f.
    if not digits or value == "uninitialized" or set(digits) in ({"0"}, {"f"}):
        return None
    return value


def this_boot() -> str:
    """Return the kernel's boot ID: a random value, different after each boot."""
    return BOOT_ID.read_text().strip()


def memory_of(directory: Path) -> str:
    """Return a text that changes when the cached pages of a directory's files are lost.

    The text combines the boot ID, the last attachment of the disk, and the directory.
    """
    found = directory.stat()
    disk = _disk_sequence(found.st_dev)
    return f"{this_boot()}/{disk}:{found.st_ino}" if disk else this_boot()


def has_forgotten(before: str | None, now: str) -> bool:
    """Return whether cached pages of a directory were lost between two calls of ``memory_of``.

    Pages were lost if the machine was restarted, or if the directory's disk was detached and
    attached again. A copy of the directory on another disk lost no pages.
    """
    if before is None:
        return True
    (boot, _, place), (boot_now, _, place_now) = before.partition("/"), now.partition("/")
    if boot != boot_now or not place or not place_now:
        return boot != boot_now
    (disk, _, ino), (disk_now, _, ino_now) = place.partition(":"), place_now.partition(":")
    return ino == ino_now and disk != disk_now


def _disk_sequence(device: int) -> str:
    """Return the kernel's sequence number of an attached disk, or "" if the disk has no number.

    Within one boot, each attachment has a different number. Linux has these numbers since version
    5.15; network filesystems and Btrfs have no single disk.
    """
    entry = BLOCK_DEVICES / f"{os.major(device)}:{os.minor(device)}"
    for path in (
        entry / "diskseq",
        entry / ".." / "diskseq",
    ):  # a partition has the sequence number of its disk
        with contextlib.suppress(OSError):
            return path.read_text("ascii").strip()
    return ""
