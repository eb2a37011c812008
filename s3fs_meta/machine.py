"""The identity of this machine and of its current boot, as values that tests can replace.

Owns: the files that identify a machine, and the detection of containers. In a container these files
belong to the image or to the host, so a container is an unknown machine.
Does not know: the effect of another machine on a lease (``sync.lease.lease_proof``), or of another
boot on files (``sync.opening``).
Sources: machine-id(5), which requires that the value be hashed before it is published; SMBIOS 3.7,
"System Information", UUID; https://systemd.io/CONTAINER_INTERFACE; random(4) on boot_id.
"""

import os
from pathlib import Path
from typing import NamedTuple

# Constants, except in tests.
MACHINE_ID = Path("/etc/machine-id")  # identifier in a file, copied together with a disk
PRODUCT_UUID = Path(
    "/sys/class/dmi/id/product_uuid"
)  # identifier of the (virtual) hardware; only root can read it
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CONTAINER_MARKS = (
    Path("/.dockerenv"),
    Path("/run/.containerenv"),
    Path("/run/systemd/container"),
)
_CONTAINER_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST")
_BYTES_MAX = 128  # maximum size of a file with an identifier; each has about 36 bytes


class Machine(NamedTuple):
    """The identifiers of a machine; None: unknown."""

    machine_id: str | None
    product_uuid: str | None


UNKNOWN = Machine(None, None)


def this_machine() -> Machine:
    """Return the identifiers of this machine; UNKNOWN in a container."""
    if any(mark.exists() for mark in CONTAINER_MARKS) or any(
        os.environ.get(name) for name in _CONTAINER_VARIABLES
    ):
        return UNKNOWN
    return Machine(_read(MACHINE_ID), _read(PRODUCT_UUID))


def _read(path: Path) -> str | None:
    """Return the identifier in a file; None if the file is absent, unreadable, or has none."""
    try:
        with path.open("rb") as file:
            value = file.read(_BYTES_MAX).decode("ascii").strip().lower()
    except (OSError, UnicodeDecodeError):
        return None
    digits = value.replace("-", "")
    # machine-id(5): "uninitialized" during the first boot. SMBIOS: all 0 or all f is no UUID.
    if not digits or value == "uninitialized" or set(digits) in ({"0"}, {"f"}):
        return None
    return value


def this_boot() -> str:
    """Return the kernel's boot ID: a random value, different after each boot."""
    return BOOT_ID.read_text().strip()
