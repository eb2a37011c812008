"""This host's copy of the superblock: the newest superblock that the host has seen.

Owns: the file, and the rule that only an explicit request replaces the copy by an older generation.
Does not know: the bucket, which of several copies is used (``selection``).
Keeps: after a crash the file is either the old or the new copy. The copy is kept if the database in
the state directory is replaced, and is removed only together with the state directory.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.errors import CorruptionError, NewerFormatError
from s3fs_meta.hashed_dir import sync_path, write_durably
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from s3fs_meta.state_paths import read_regular
from s3fs_meta.sync.host_state.state_dir import require_own

_NAME: Final = "superblock"


class Remembered:
    """The superblock copy in one state directory, which may not exist. All methods block."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self.path = state / _NAME

    def read(self) -> bytes | None:
        """Return the bytes of the copy, which may be damaged, or None if no copy exists.

        Raises:
            SettingsError: the state directory belongs to another user.
            OSError: the file cannot be read, or is not a regular file.
        """
        require_own(self._state)
        try:
            return read_regular(self.path, TEXT_OBJECT_BYTES_MAX + 1)
        except FileNotFoundError:
            return None

    def keep(self, data: bytes, *, back: bool = False) -> None:
        """Store an authentic superblock durably as the copy, unless the existing copy is newer.

        A copy of the same generation with other content also stays. If the state directory does not
        exist, nothing is stored.

        Args:
            data: the bytes of the superblock.
            back: replace the existing copy even if it is newer.
        """
        present = self.read()
        if present == data or not self._state.is_dir():
            return
        if not back and present is not None and _is_older(data, present):
            return
        new = self.path.with_name(f"{_NAME}.new-{os.getpid()}")
        try:
            write_durably(new, data)
            new.rename(self.path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                new.unlink()
        sync_path(self._state)


def _is_older(data: bytes, present: bytes) -> bool:
    """Return whether *data* is an older superblock than *present* of the same filesystem.

    The result is also true for different bytes with the same generation: every change raises the
    generation, so an object with such bytes was replaced. Early versions always wrote generation 0.
    """
    one = superblock_codec.decode(superblock_codec.KEY, data)
    try:
        other = superblock_codec.decode(superblock_codec.KEY, present)
    except NewerFormatError:
        return True
    except CorruptionError:
        return False
    exchanged = one.generation == other.generation > 0 and data != present
    return one.uuid == other.uuid and (one.generation < other.generation or exchanged)
