"""Functions that let the retention period expire on a real mount."""

import os

from tests.cli.conftest import Place
from tests.programs import Program


def outlive(program: Program, place: Place) -> None:
    """Let all earlier points in time become older than the retention, and run reclaim."""
    program.ok("retention", place.url, "0")
    for number in range(3):
        (place.mountpoint / f"later-{number}").write_bytes(os.urandom(100))
        program.ok("flush", "--image", place.mountpoint)
    program.ok("reclaim", place.mountpoint)


def stored_bytes(place: Place) -> int:
    """Return the total size of all packs in the bucket."""
    return sum(path.stat().st_size for path in (place.bucket / "pack").rglob("*") if path.is_file())
