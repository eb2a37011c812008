"""The identity of the current boot, as a value that tests can replace.

Owns: the path of the kernel's boot ID. Does not know: what another boot means for files (``sync``, ``cli``).
Source: random(4), /proc/sys/kernel/random/boot_id.
"""

from pathlib import Path

ID_FILE = Path("/proc/sys/kernel/random/boot_id")  # a constant, but to tests


def this_boot() -> str:
    """Return the kernel's boot ID, which is random and new after each boot."""
    return ID_FILE.read_text().strip()
