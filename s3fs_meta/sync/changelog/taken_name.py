"""Handling of an object that already occupies the key of this writer's next changelog.

Owns: deciding whether another writer wrote the object. Does not know: how images are made.
Keeps: the object is never changed. If another writer wrote it, this host is fenced. Otherwise the
attempted txg is recorded as the last txg of this host, with an unreadable changelog, and the next
txg is an image of the local state.
Tasks: the shipper's task, under its lock.
Design: docs/design/durability.md, "From cut to chain".
"""

import logging
from typing import NoReturn

from s3fs_meta.background_task import in_thread
from s3fs_meta.bucket_errors import OlderBucketError
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.errors import FormatError, ObjectMissingError
from s3fs_meta.meta.tables import pending
from s3fs_meta.model import Txg
from s3fs_meta.sync.chain import abandoned_txgs, chain, names
from s3fs_meta.sync.durability import Durability
from s3fs_meta.sync.volume import Volume

_log = logging.getLogger(__name__)


async def step_over(volume: Volume, durability: Durability, txg: Txg, data: bytes) -> NoReturn:
    """Skip a txg whose key another object already has, and always raise an error.

    The caller must have checked that this host holds the lease.

    Args:
        volume: the volume of the writer.
        durability: commits the writer's rows.
        txg: the attempted txg.
        data: the changelog of the attempted txg.

    Raises:
        FencedError: the object is authentic, so another writer has appended it.
        OlderBucketError: the object is not authentic, or is missing now. This is recorded, so the
            next txg is an image.
        StoreError: the object cannot be read now; the next txg retries.
    """
    key = key_of(txg)
    try:
        await names.require_authentic(volume.store, volume.keyring, key)
    except ObjectMissingError:
        what = f"{key} existed when this host tried to append it, and is missing now"
    except FormatError as exc:
        what = f"{key} is taken by an object that this filesystem did not write ({exc.what})"
    else:
        raise volume.keeper.ended_by_object(key)
    _log.error("%s; the next txg, %d, is an image of the local state", what, txg + 1)
    link = await in_thread(chain.link_of, txg, data, volume.keyring)
    volume.db.begin_local()
    chain.record_own(volume.db, link)
    pending.clear_outbox(volume.db)
    abandoned_txgs.want(volume.db, what)
    durability.commit()
    volume.position.advance(link)
    raise OlderBucketError(
        volume.store.url, txg, what, "the next txg will be an image of the local state"
    )
