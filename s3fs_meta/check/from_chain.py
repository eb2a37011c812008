"""Rebuilding rows from the chain alone: all changelogs since mkfs are applied to empty tables.

Owns: the replay of changelogs without an image. Does not know: pack objects.
Keeps: every changelog must record the hash of its predecessor; the first one records none. Replay
stops before a damaged or missing changelog. If a newer version of the program may have continued
the chain, the chain is rejected, because the rebuilt state would lack the newer changes.

Two facts are in the first image and in no changelog: the first attributes of the root directory and
the cookie key. The attributes are derived from the first changes of the root directory
(``meta.offline.first_root``). Without the first image the cookie key is lost, so a new key is
generated, and fsck computes new cookies for all names.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from s3fs_meta.background_task import in_thread
from s3fs_meta.bucket_errors import BrokenChainError
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.codec.image import NO_HASH
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, NewerFormatError, ObjectMissingError
from s3fs_meta.limits import TXG_GAP_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.meta.offline.first_root import FirstRoot
from s3fs_meta.model import Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain, names
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.chain.replay import NeedsImageError, Replayer
from s3fs_meta.sync.progress import Progress

_log = logging.getLogger(__name__)
_START: Final = Link(Txg(0), NO_HASH, 0)


class ChainReader:
    """Replays the chain from its first changelog."""

    def __init__(
        self,
        store: ObjectStore,
        keyring: Keyring,
        uuid: str,
        create: Callable[[Path], Database],
        progress: Progress,
    ) -> None:
        """Prepare to replay the chain.

        Args:
            create: creates the database of an empty filesystem; called in a thread.
        """
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        self._create = create
        self._progress = progress

    async def lay_out(self, path: Path) -> Txg | None:
        """Replay the chain into a new database file; return the last applied txg.

        Return None if the first changelog is missing or unreadable.

        Raises:
            NewerFormatError: a newer program may have written a changelog of the chain.
            StoreError: the store is unavailable.
            OSError: the disk is full.
        """
        await self._refuse_newer_end()
        best = Txg(0)
        uses_levels = False
        # Replay with level objects, then without. A partly applied txg cannot be undone.
        # So if both attempts fail, replay once more up to the last txg that was applied in full.
        for by_levels in (True, False):
            reached, complete = await self._replay(path, None, by_levels=by_levels)
            if complete:
                return reached
            if reached > best:
                best, uses_levels = reached, by_levels
        if not best:
            return None
        reached, complete = await self._replay(path, best, by_levels=uses_levels)
        return reached if complete else None

    async def _refuse_newer_end(self) -> None:
        """Raise NewerFormatError if the end of the chain has an unknown version.

        The replay may stop before the end of the chain, and would then miss the newer version.
        """
        listed = await chain.listed_from(self._store, Txg(1))
        named = [(txg, key_of(txg)) for txg in listed]
        end = await names.reached(self._store, self._keyring, Txg(0), named)
        # Examine all changelogs if none is authentic: a newer program may have written them.
        counted = [txg for txg in listed if txg <= end] or listed
        for txg in reversed(counted[-TXG_GAP_MAX:]):
            try:
                fetched = await chain.fetch(self._store, self._keyring, self._uuid, txg)
            except NewerFormatError:
                raise
            except (FormatError, ObjectMissingError):
                continue
            chain.require_known(fetched.changelog)
            return

    async def _replay(self, path: Path, upto: Txg | None, *, by_levels: bool) -> tuple[Txg, bool]:
        """Replay the chain into an empty database; return the last txg, and True on success."""
        await in_thread(image_copy.remove, path)
        db = await in_thread(self._create, path)
        reached = Txg(0)

        def note(_what: str, done: int, total: int) -> None:
            nonlocal reached
            reached = Txg(done)
            self._progress("changes", done, total)

        try:
            replayer = Replayer(
                self._store, self._keyring, self._uuid, db, heard=FirstRoot(db).hear
            )
            link = await replayer.forward(_START, note, upto, by_levels=by_levels)
        except BrokenChainError as exc:
            _log.warning("%s", exc)
            return Txg(exc.last_txg), False
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError, NeedsImageError) as exc:
            _log.warning("the chain of changelogs cannot be read beyond txg %d: %s", reached, exc)
            return reached, False
        finally:
            db.close()
        if link.txg == 0:
            return link.txg, False
        await in_thread(image_copy.finish, path, (), ())
        return link.txg, True
