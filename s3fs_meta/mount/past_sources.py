"""The sources of copies of past states: a file or tree at the point in time in a request.

Owns: the form of sources in requests, and the upload that precedes a copy of the present state.
Does not know: how a tree is copied (``fs.past.past_clone``), paths of users (``mount_paths``).

    {"ino": number}     a past inode, as ``.snapshots`` shows it
    {"top": inode, "names": [text], "at": {"text", "time_ns", "txg", "is_ago"}}   a path at a time
    {"top": inode, "names": [text], "at": null}   a path now; all changes are uploaded first

If the last name is ".", the path before it must be that of a directory.
"""

import os
import stat
from collections.abc import Sequence
from functools import partial

from s3fs_meta.control.protocol import Message, Report, progress_to
from s3fs_meta.errors import SettingsError, UsageError
from s3fs_meta.fs.past.open_points import OpenPoints
from s3fs_meta.fs.past.past_clone import Find, PastClone
from s3fs_meta.fs.past.past_tree import PAST_TOP_INO, PastTree
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import Attributes, Ino, PointInTime, Txg
from s3fs_meta.sync.history.kept import kept_points
from s3fs_meta.sync.session import Session


class PastSources:
    """Finds the past files and trees of one mount that requests copy."""

    def __init__(
        self, session: Session, points: OpenPoints, tree: PastTree, clone: PastClone
    ) -> None:
        """Store the parts of the mount.

        Args:
            session: uploads the present state.
            points: finds points in time.
            tree: maps the inode numbers of past states.
            clone: copies a source.
        """
        self._session = session
        self._points = points
        self._tree = tree
        self.clone = clone

    async def find(self, source: Message, report: Report) -> tuple[Txg, Find]:
        """Return the txg of a source, and a function that finds the source's inode at that txg.

        Raises:
            UsageError: the source is malformed, or is the directory of all points in time.
            SettingsError: the point in time is not available.
            NoInodeError: no past inode has the number in the request.
            StoreError, BrokenChainError: the bucket cannot be reached or read.
            The same errors as ``Session.flush``.
        """
        ino = source.get("ino")
        if isinstance(ino, int):
            if ino == PAST_TOP_INO:
                raise UsageError(
                    "the source contains all points in time; add one of them to the path, for"
                    " example 1h-ago"
                )
            txg, past_ino = self._tree.origin_of(Ino(ino))
            return txg, lambda db: inodes.get(db, past_ino)
        top, names, at = (source.get(key) for key in ("top", "names", "at"))
        if not isinstance(top, int) or not isinstance(names, list):
            raise UsageError(
                "a source in the past needs the field ino, or the fields top and names"
            )
        path = [os.fsencode(name) for name in names]
        txg = await self._cut(report) if at is None else await self._retained(at)
        return txg, partial(_at_path, Ino(top), path)

    async def _cut(self, report: Report) -> Txg:
        """Upload all changes; return the last txg."""
        session = self._session
        with session.throttles.upload.lifted():
            await session.flush(progress_to(report))
        return session.link.txg

    async def _retained(self, at: Message) -> Txg:
        """Return the last txg at a point in time. Raises the same errors as ``find``."""
        try:
            wanted = PointInTime(**at)
        except TypeError as exc:
            raise UsageError(
                "the point in time for the copy has unknown or missing fields"
            ) from exc
        link = await self._points.find(wanted)
        if link is None and wanted.kept is not None:
            raise SettingsError(kept_points.no_such_point(wanted.kept))
        if link is None:
            raise SettingsError(
                f"the point {wanted.text} is in the future, or is not retained; s3fs-meta log"
                " lists the points in time"
            )
        return link.txg


def _at_path(top: Ino, path: Sequence[bytes], db: Database) -> Attributes:
    """Return the inode at a path without following links.

    Raises:
        UsageError: the path is missing, or it ends in "." and is not that of a directory.
    """
    at = inodes.find(db, top)
    names = [name for name in path if name != b"."]
    for name in names:
        at = None if at is None else dentries.find_attributes(db, at.ino, name)
    shown = os.fsdecode(b"/".join(names))
    if at is None:
        raise UsageError(f"the path {shown!r} did not exist at that point in time")
    if len(names) < len(path) and not stat.S_ISDIR(at.mode):
        raise UsageError(f"the path {shown!r} was not a directory at that point in time")
    return at
