"""Objects that nothing needs any more: packs that died, images that are past.

Owns: which objects may be deleted, and the order: condemn (rows), then DELETE, then forget.
Does not know: why a pack died.
Keeps: a pack that one of the last IMAGES_KEPT images names is never deleted; an object that we
did not write is never deleted.
Design: docs/design/durability.md, "Deletion in two phases".
"""

import logging
from contextlib import aclosing

import trio

from s3fs_meta.cache.slices import slices
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec.image import Manifest, ManifestRef
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Head
from s3fs_meta.errors import S3fsError
from s3fs_meta.limits import DELETE_BATCH_KEYS, IMAGES_KEPT
from s3fs_meta.meta import packs
from s3fs_meta.meta.database import Database
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync import heads
from s3fs_meta.sync.durability import Durability
from s3fs_meta.sync.hooks import Hook

_log = logging.getLogger(__name__)


class Reclaimer:
    """Deletes what the kept images do not name, after each new image."""

    def __init__(
        self,
        db: Database,
        store: ObjectStore,
        keyring: Keyring,
        durability: Durability,
        *,
        hook: Hook,
    ) -> None:
        self._db = db
        self._store = store
        self._keyring = keyring
        self._durability = durability
        self._hook = hook
        self.last_error = ""

    async def after_image(self, head: Head) -> None:
        """Reclaim with *head* as the newest image; a failure leaves work for the next time."""
        try:
            kept = await self._kept(head)
            if len(kept) == IMAGES_KEPT:
                await self._delete_packs(kept[-1].txg)
                await self._delete_images(kept)
            self.last_error = ""
        except S3fsError as exc:
            self.last_error = str(exc)
            _log.warning("reclaim put off: %s", exc)

    async def _kept(self, head: Head) -> list[Manifest]:
        """Return the manifests of the kept images, newest first."""
        kept: list[Manifest] = []
        link: ManifestRef | None = ManifestRef(head.manifest_key, head.manifest_hash)
        while link is not None and len(kept) < IMAGES_KEPT:
            manifest = await heads.load_manifest(self._store, self._keyring, link.key, link.hash)
            kept.append(manifest)
            link = manifest.previous
        return kept

    async def _delete_packs(self, oldest_kept: Txg) -> None:
        """Delete packs that died before the cut of the oldest kept image, and orphans."""
        died = packs.dead_before(self._db, Txg(oldest_kept + 1))
        dead = (packs.condemned(self._db) + died)[:DELETE_BATCH_KEYS]
        if not dead:
            return
        for piece in slices(dead):
            self._db.begin_local()
            for pack, _key in piece:
                packs.condemn(self._db, pack)
            await trio.lowlevel.checkpoint()
        await self._durability.sync_all()
        self._hook("packs condemned")
        await self._store.delete([key for _pack, key in dead])
        self._hook("packs deleted")
        for piece in slices(dead):
            self._db.begin_local()
            for pack, _key in piece:
                packs.delete(self._db, pack)
            await trio.lowlevel.checkpoint()

    async def _delete_images(self, kept: list[Manifest]) -> None:
        """Delete images older than the kept ones, but for pieces that those still use."""
        needed = {piece.key for manifest in kept for piece in manifest.pieces}
        oldest = kept[-1]
        old: list[ObjectKey] = []
        async with aclosing(self._store.list("image/")) as listing:
            async for info in listing:
                key = info.key
                name = image_codec.parse_piece_key(key) or image_codec.parse_manifest_key(key)
                if name is not None and name.txg < oldest.txg and key not in needed:
                    old.append(key)
                if len(old) == DELETE_BATCH_KEYS:
                    break
        await self._store.delete(old)
