"""A database that records its changes, and a replica that applies these changes."""

from pathlib import Path

from s3fs_meta.codec.changelog import Location, PackNote
from s3fs_meta.errors import FormatError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.replica import Replica
from s3fs_meta.meta.tables import pending
from s3fs_meta.meta.tables.pending import ChangeRecorder
from s3fs_meta.model import BlockId, PackId, Txg


class Pair:
    """A database that records its changes, and a replica of it."""

    def __init__(self, db: Database, home: Path) -> None:
        self.db = db
        self.recorder = ChangeRecorder(db, lambda: 1)
        db.commit()
        snapshot = db.open_snapshot()
        snapshot.copy_to(home / "copy.db")
        snapshot.close()
        self.copy = Database.open(home / "copy.db", Pragmas())
        self.replica = Replica(self.copy)
        self.seq = self.recorder.last_seq

    def changeset(self) -> bytes:
        """Return the changes recorded since the last call."""
        self.db.commit()
        run = pending.merged_run(self.db.connection, self.seq, self.recorder.last_seq, 1 << 24)
        self.seq = self.recorder.last_seq
        return b"" if run is None else run.changeset

    def apply_note(
        self,
        txg: int,
        *,
        locations: tuple[Location, ...] = (),
        notes: tuple[PackNote, ...] = (),
        forgotten: tuple[PackId, ...] = (),
    ) -> None:
        """Apply the changes recorded since the last call to the replica, as one txg."""
        self.replica.begin()
        try:
            self.replica.add(self.changeset(), locations, "changes")
            self.replica.finish(Txg(txg), notes, forgotten, f"link {txg}", "changes")
        except FormatError:
            self.replica.abandon()
            raise


def lost(block: BlockId, plain_bytes: int) -> Location:
    """Return the location that marks a block as lost."""
    return Location(block, plain_bytes, bytes(32), None, None, None)
