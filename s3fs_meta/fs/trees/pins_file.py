"""The file that records the pinned trees of a host, in the state directory.

Owns: the file, which contains one JSON object. Does not know: the effect of a pin (``pins``).

    {"version": 1, "pins": [{"path": "a/b", "ino": 5, "born_ns": 1700000000000000000}]}

Older programs ignore the file. It is not a part of the database, so it survives if the
database is restored from the bucket.
Keeps: after a crash the file contains either the old or the new pins.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from s3fs_meta.errors import SettingsError
from s3fs_meta.hashed_dir import replace_durably, sync_path
from s3fs_meta.limits import PINS_FILE_BYTES_MAX, PINS_MAX
from s3fs_meta.model import Ino
from s3fs_meta.state_paths import read_regular

NAME: Final = "pins"
_VERSION: Final = 1


class Pin(NamedTuple):
    """One pinned tree: its path, and the last known inode at that path."""

    path: bytes  # path without a leading slash; empty for the root of the filesystem
    ino: Ino
    born_ns: int  # creation time of the inode, to detect a reused number


def read(state: Path) -> list[Pin]:
    """Return the pins of this host, or [] if the file is missing. The call blocks.

    Raises:
        SettingsError: the file is damaged, has a newer version, or cannot be read.
    """
    path = state / NAME
    try:
        data = read_regular(path, PINS_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise SettingsError(f"cannot read the list of pins {str(path)!r}: {exc.strerror}") from exc
    found = _decoded(data) if len(data) <= PINS_FILE_BYTES_MAX else None
    if found is None:
        raise SettingsError(
            f"this version of s3fs-meta cannot read the list of pins in {str(path)!r}; upgrade, or"
            " remove the file and pin the trees again with s3fs-meta warm --pin"
        )
    return found


def _decoded(data: bytes) -> list[Pin] | None:
    """Return the pins in the content of the file, or None if it is invalid."""
    try:
        found = json.loads(data)
        if found["version"] != _VERSION or len(found["pins"]) > PINS_MAX:
            return None
        pins = [_pin(one) for one in found["pins"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return [pin for pin in pins if pin is not None] if None not in pins else None


def _pin(one: Any) -> Pin | None:
    path, ino, born_ns = one["path"], one["ino"], one["born_ns"]
    if type(ino) is not int or type(born_ns) is not int or not 0 < ino < 1 << 63:
        return None
    return Pin(os.fsencode(path), Ino(ino), born_ns)


def write(state: Path, pins: Sequence[Pin]) -> None:
    """Record the pins durably; remove the file if there are no pins. The call blocks.

    Raises:
        SettingsError: the file cannot be written, or its directory cannot be synced.
    """
    path = state / NAME
    try:
        _write(path, pins)
    except OSError as exc:
        raise SettingsError(f"cannot write the list of pins {str(path)!r}: {exc.strerror}") from exc


def _write(path: Path, pins: Sequence[Pin]) -> None:
    if not pins:
        path.unlink(missing_ok=True)
        sync_path(path.parent)
        return
    listed = [{**pin._asdict(), "path": os.fsdecode(pin.path)} for pin in pins]
    replace_durably(path, json.dumps({"version": _VERSION, "pins": listed}).encode())
