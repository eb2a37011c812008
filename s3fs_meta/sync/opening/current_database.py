"""A database with the last txg of the chain: the local database, or a restored database.

Owns: the rule that local state is kept until another database has replaced it; the choice of the
txg from which to continue if the last changelogs of the chain cannot be read.
Does not know: the rules of the lease, how txgs are abandoned in the bucket.
Design: docs/design/durability.md, "At mount".
"""

from pathlib import Path

from s3fs_meta.background_task import in_thread
from s3fs_meta.bucket_errors import BrokenChainError
from s3fs_meta.codec.lease import Lease
from s3fs_meta.errors import (
    CorruptionError,
    NewerFormatError,
    ObjectMissingError,
    S3fsError,
    UnfinishedFilesystemError,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.local_disk import sync_directory
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.meta.tables import pending
from s3fs_meta.model import Txg
from s3fs_meta.state_paths import unfinished
from s3fs_meta.sync.chain import abandoned_txgs, chain, names
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.points_in_time import PointsInTime
from s3fs_meta.sync.image.restore import Restorer
from s3fs_meta.sync.opening import end_marks
from s3fs_meta.sync.opening.local_state_choice import (
    Chooser,
    Local,
    OpeningContext,
    ReplacedState,
)


class CurrentDatabase:
    """Opens or restores a database with the chain's last txg, in a locked state directory."""

    def __init__(self, context: OpeningContext) -> None:
        self._context = context
        self._store = context.store
        self._superblock = context.superblock
        self._keyring = context.keyring
        self._state_dir = context.state_dir
        self._options = context.options
        # the opened database; if opening fails, the caller closes it
        self.db: Database | None = None
        # The next txg follows this position, unless the local rows have a later position.
        self.behind = abandoned_txgs.NOTHING
        self.notices: list[str] = []  # facts to show to the user, one line each
        self.mended: list[str] = []  # faults of the chain, and the txgs that were abandoned

    async def choose(self, local: Local, lease: Lease, holder: str) -> Database:
        """Return a database with the last txg of the chain, or with later local changes.

        Args:
            local: the local state.
            lease: the lease in the bucket.
            holder: this host's holder name in leases.

        Raises:
            BrokenChainError: the last changelogs cannot be read; the local state is kept.
            SettingsError: txgs of another host would be abandoned; the message says what to do.
            StoreError, FormatError: an object is unavailable or damaged.
        """
        self.db = local.db
        chooser = Chooser(self._context, lease)
        try:
            db = await chooser.choose(local)
            if db is None:
                db = await self._restore_or_mend(chooser, lease, holder)
            elif chooser.lost_end and not self._options.read_only:
                await self._go_on_from_local(chooser, db, lease)
        finally:
            self.notices += chooser.notices
        self.db = db
        return db

    async def _go_on_from_local(self, chooser: Chooser, db: Database, lease: Lease) -> None:
        """Record that the next txg must be an image of the local state; record its predecessor."""
        why = chooser.lost_end
        self._want_image(db, abandoned_txgs.put_back(why) if chooser.is_put_back else why)
        self.mended.append(f"{why}; an image of the local state replaces it")
        if not chooser.replaces:
            return
        store, keyring, uuid = self._store, self._keyring, self._superblock.uuid
        ours = chain.recorded(db)
        assert ours is not None, "local state without a link is never chosen"
        try:
            newest = await PointsInTime(store, keyring, uuid, lease).newest()
        except NewerFormatError:
            raise
        # If no txg in the bucket can be restored, continue the chain from the local state.
        except (CorruptionError, UnfinishedFilesystemError):
            self.behind = await abandoned_txgs.behind_all(store, keyring, uuid, lease, ours)
            return
        behind = await abandoned_txgs.behind_all(store, keyring, uuid, lease, newest)
        kept = newest._replace(floor=max(newest.floor, ours.floor))
        self.behind = behind._replace(txg=max(behind.txg, ours.txg), link=kept)
        self.mended.append(
            f"the other history in the bucket, up to txg {newest.txg}, stays available as past txgs"
        )

    async def _restore_or_mend(self, chooser: Chooser, lease: Lease, holder: str) -> Database:
        """Restore the newest txg. If that fails and fsck permits it, restore an earlier txg."""
        try:
            path, _link = await self._restore(lease, beside=chooser.left is not None)
        except NewerFormatError:
            raise
        except (CorruptionError, ObjectMissingError, UnfinishedFilesystemError) as exc:
            if self._options.mend is None:
                raise
            broken: S3fsError = exc
        else:
            await chooser.remove_replaced(path)
            return self._put_in_place(path, lease)
        return await self._end_chain(chooser, lease, holder, broken)

    async def _restore(
        self, lease: Lease, *, beside: bool, upto: Txg | None = None
    ) -> tuple[Path, Link]:
        head = lease.head
        if head is None:
            raise UnfinishedFilesystemError(self._store.url)
        restorer = Restorer(
            self._store, self._keyring, self._superblock.uuid, self._context.progress
        )
        target = self._state_dir.database
        if beside:
            self._state_dir.tmp.mkdir(mode=0o700, exist_ok=True)
            target = unfinished(self._state_dir.tmp, "restored.db")
            await in_thread(image_copy.remove, target)
        try:
            return target, await restorer.restore(head.manifest, target, upto)
        finally:
            self.notices += restorer.notices

    def _put_in_place(self, path: Path, lease: Lease) -> Database:
        """Move a restored database to the path of the local database, which must be free."""
        self.db = None
        database = self._state_dir.database
        if path != database:
            path.rename(database)
            sync_directory(self._state_dir.path)
        db = Database.open(database, self._options.pragmas)
        self.db = db
        assert lease.head is not None, "the database was restored from an image"
        with end_marks.unclean(db):
            db.begin_local()
            image_head.confirm(db, lease.head, changed=False)
            db.commit_durable()
        return db

    # --- repair a chain whose last changelogs are unreadable -----------------------------------

    async def _end_chain(
        self, chooser: Chooser, lease: Lease, holder: str, broken: S3fsError
    ) -> Database:
        """Continue from the last txg on this host or in the bucket, with an unused txg number.

        Raises:
            SettingsError: another host wrote txgs that would be abandoned.
            CorruptionError, ObjectMissingError: no txg is available.
        """
        last = Txg(broken.last_txg) if isinstance(broken, BrokenChainError) else None
        left = chooser.left
        if left is not None and left.link is not None and (last or 0) <= left.link.txg:
            kept = left.link
            await self._require_right(kept.txg, lease, holder, left, no_image=last is None)
            db, chooser.left = left.db, None
            db.begin_local()
            # Drop the attempted changelog, because the next txg is an image that has its changes.
            pending.clear_outbox(db)
            db.commit()
        elif last is None:
            raise broken
        else:
            await self._require_right(last, lease, holder, left, no_image=False)
            path, kept = await self._restore(lease, beside=left is not None, upto=last)
            await chooser.remove_replaced(path)
            db = self._put_in_place(path, lease)
        store, keyring, uuid = self._store, self._keyring, self._superblock.uuid
        self.behind = await abandoned_txgs.behind_all(store, keyring, uuid, lease, kept)
        self._want_image(db, broken.message)
        self.mended.append(broken.message)
        self.mended.append(
            f"the chain continues after txg {kept.txg} with txg {self.behind.txg + 1}"
        )
        self.mended += await abandoned_txgs.describe(store, keyring, uuid, kept, self.behind.txg)
        return db

    async def _require_right(
        self, kept: Txg, lease: Lease, holder: str, left: ReplacedState | None, *, no_image: bool
    ) -> None:
        mend = self._options.mend
        assert mend is not None, "only a repair abandons txgs"
        lost = await names.last_name(self._store, self._keyring, kept)
        if lost > kept:
            uuid = self._superblock.uuid
            own = None if left is None else chain.own_txg(left.db)
            right = abandoned_txgs.Right(mend, lease, holder, own, no_image)
            await abandoned_txgs.require_right(self._store, self._keyring, uuid, kept, lost, right)

    def _want_image(self, db: Database, why: str) -> None:
        db.begin_local()
        abandoned_txgs.want(db, why)
        db.commit()
