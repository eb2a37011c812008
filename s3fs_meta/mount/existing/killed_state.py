"""The changes that are in the local state of a killed daemon, but not in the bucket.

Owns: reading the local state. Does not know: recovery, which the next mount performs.
Keeps: the local state is never changed.
"""

from pathlib import Path
from typing import NamedTuple

from s3fs_meta.console.output import human_bytes
from s3fs_meta.counted import counted
from s3fs_meta.errors import S3fsError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import cached_blocks, pending
from s3fs_meta.model import BlockState
from s3fs_meta.sync.host_state.state_dir import StateDir

_NOT_UPLOADED = (BlockState.DIRTY, BlockState.SEALED)
_UNKNOWN = "changes may be only on this host"


class Unshipped(NamedTuple):
    """The changes that are in a state directory, but not in the bucket."""

    content_bytes: int
    blocks: int
    has_changes: bool  # True if names, attributes or block maps have changed

    @property
    def is_nothing(self) -> bool:
        """Return whether the bucket has all changes."""
        return not self.blocks and not self.has_changes

    @property
    def described(self) -> str:
        """Return a phrase that says where the unshipped changes are."""
        if self.is_nothing:
            return "everything is in the bucket"
        content = f"{human_bytes(self.content_bytes)} in {counted(self.blocks, 'block')}"
        found = [content] if self.blocks else []
        found += ["changes of the metadata"] if self.has_changes else []
        return f"only on this host: {' and '.join(found)}"


def unshipped(path: Path) -> Unshipped | None:
    """Return the unshipped changes in a state directory, or None if they cannot be read.

    The call blocks. Operations that were not committed when the daemon was killed are lost, and are
    not counted.
    """
    try:
        if not path.is_dir():
            return None
        db = Database.open(StateDir(path).database, Pragmas(), read_only=True)
    except (S3fsError, OSError):
        return None
    try:
        totals = [cached_blocks.totals(db)[state] for state in _NOT_UPLOADED]
        is_waiting = pending.outbox(db) is not None or pending.has_news(db)
        return Unshipped(
            sum(total.plain_bytes for total in totals),
            sum(total.blocks for total in totals),
            is_waiting,
        )
    except S3fsError:
        return None
    finally:
        db.close()


def described(path: Path) -> str:
    """Return a phrase that says where the changes of a state directory are. The call blocks."""
    found = unshipped(path)
    return _UNKNOWN if found is None else found.described


def is_removed(path: Path) -> bool:
    """Return whether a state directory was removed. The call blocks.

    If the disk has failed, the directory exists, although it cannot be read.
    """
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
