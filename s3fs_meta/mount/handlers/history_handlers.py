"""The daemon's handlers of control requests about the history of files.

Owns: converting messages to calls, and adding the changes that are not uploaded yet.
Does not know: clients (``history_requests``), how versions are found.
"""

import os
from typing import Final

from s3fs_meta.background_task import in_thread
from s3fs_meta.control.protocol import Handler, Message, Report
from s3fs_meta.errors import UsageError
from s3fs_meta.meta.tables import pending
from s3fs_meta.meta.tables.pending import MergedRecords
from s3fs_meta.model import Ino, Txg
from s3fs_meta.mount.limits import (
    HISTORY_SHOWN_MAX,
    PATTERN_NAMES_MAX,
    UNSHIPPED_VERSIONS_BYTES_MAX,
)
from s3fs_meta.mount.requests import history_requests
from s3fs_meta.sync.history.index.index_search import HistorySearch
from s3fs_meta.sync.history.versions.changelog_reader import ChangelogReader
from s3fs_meta.sync.history.versions.path_versions import PathVersions
from s3fs_meta.sync.session import Session

_SLOWER_ON_LOOP: Final = 64  # a merge on the event loop may have 1/N of the size limit
_TOO_MUCH: Final = "too many changes are not uploaded yet; their versions are missing"


class HistoryHandlers:
    """The handlers of requests to one mount about the history of files."""

    def __init__(
        self, session: Session, *, unshipped_bytes_max: int = UNSHIPPED_VERSIONS_BYTES_MAX
    ) -> None:
        """Create the handlers.

        Args:
            session: the session of the mount.
            unshipped_bytes_max: the maximum size of unshipped changes that a request examines.
        """
        self._session = session
        self._unshipped_bytes_max = unshipped_bytes_max

    def handlers(self) -> dict[str, Handler]:
        """Return the handler of each control command about history."""
        return {history_requests.VERSIONS: self._on_versions}

    async def _on_versions(self, arguments: Message, _report: Report) -> Message:
        names = [os.fsencode(name) for name in arguments["names"]]
        shape = history_requests.Shape(
            arguments["count"], attributes=arguments["attributes"], pattern=arguments["pattern"]
        )
        most = HISTORY_SHOWN_MAX // (PATTERN_NAMES_MAX if shape.pattern else 1)
        if not 0 < shape.count <= most:
            raise UsageError(
                f"a mount lists at most {most} versions of each file; for more, use the URL of the "
                "bucket"
            )
        volume = self._session.volume
        link = self._session.link
        unshipped, notice = await self._unshipped()
        finder = PathVersions(
            volume.db,
            HistorySearch(volume.store, volume.keyring, volume.uuid, link),
            ChangelogReader(volume.store, volume.keyring, volume.uuid),
            Txg(max(link.floor, 1)),
            link,
            unshipped=unshipped,
            top=Ino(arguments["top"]),
        )
        found = await history_requests.found_by(finder, names, shape)
        return {**found, "notices": found["notices"] + ([] if notice is None else [notice])}

    async def _unshipped(self) -> tuple[bytes, str | None]:
        """Return the changes that are not uploaded yet, and a notice if there are too many."""
        session = self._session
        if session.status.read_only:
            return b"", None
        session.durability.commit()
        after, last = session.shipper.confirmed_seq, session.volume.recorder.last_seq
        if session.db.wal is None:  # read without a snapshot, which would copy the database
            limit = self._unshipped_bytes_max // _SLOWER_ON_LOOP
            run = pending.merged_run(session.db.connection, after, last, limit)
            return _changes(run, last)
        snapshot = session.db.open_snapshot()
        try:
            run = await in_thread(
                pending.merged_run, snapshot.connection, after, last, self._unshipped_bytes_max
            )
        finally:
            snapshot.close()
        return _changes(run, last)


def _changes(run: MergedRecords | None, last: int) -> tuple[bytes, str | None]:
    """Return the merged changes, or only a notice if there are too many changes."""
    if run is None:
        return b"", None
    return (run.changeset, None) if run.last_seq == last else (b"", _TOO_MUCH)
