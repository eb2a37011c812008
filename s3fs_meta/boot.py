"""Which boot of the machine this is, as a value that tests can replace.

Owns: where the kernel says so. Does not know: what another boot means for files (``sync``, ``cli``).
Source: random(4), /proc/sys/kernel/random/boot_id.
"""

from pathlib import Path

ID_FILE = Path("/proc/sys/kernel/random/boot_id")  # a constant, but to tests


def this_boot() -> str:
    """Return a random identity that is another one after each start of the machine."""
    return ID_FILE.read_text().strip()
