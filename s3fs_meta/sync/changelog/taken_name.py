"""Stepping over an object that has the name of this writer's next changelog and is not authentic.

Owns: the decision whether another writer took the name. Does not know: how images are made.
Keeps: the object stays as it is. The attempted txg counts as the last one of this host, whose
changelog cannot be read, as at a mount after such damage; the next txg is an image of the local state.
Tasks: the shipper's, under its lock.
Design: docs/design/durability.md, "From cut to chain".
"""

import logging
from typing import NoReturn

import trio

from s3fs_meta.codec.changelog import key_of
from s3fs_meta.errors import FormatError, ObjectMissingError, OlderBucketError
from s3fs_meta.meta.tables import pending
from s3fs_meta.model import Txg
from s3fs_meta.sync.chain import abandoned_txgs, chain, names
from s3fs_meta.sync.durability import Durability
from s3fs_meta.sync.volume import Volume

_log = logging.getLogger(__name__)


async def step_over(volume: Volume, durability: Durability, txg: Txg, data: bytes) -> NoReturn:
    """Handle a name that is taken, while this host holds the lease.

    Args:
        volume: of the writer.
        durability: of its rows.
        txg: the attempted txg.
        data: its changelog.

    Raises:
        FencedError: the object is authentic, so another writer has appended it.
        OlderBucketError: it is not; recorded, so that the next txg is an image.
        StoreError: the object cannot be read now; the next txg tries again.
    """
    key = key_of(txg)
    try:
        await names.require_authentic(volume.store, volume.keyring, key)
    except ObjectMissingError:
        what = f"{key} was there, and is missing"
    except FormatError as exc:
        what = f"{key} is taken by an object that this filesystem did not write ({exc.what})"
    else:
        raise volume.keeper.ended_by_object(key)
    _log.error("%s; an image of the local state becomes txg %d", what, txg + 1)
    link = await trio.to_thread.run_sync(chain.link_of, txg, data, volume.keyring)
    volume.db.begin_local()
    chain.record_own(volume.db, link)
    pending.clear_outbox(volume.db)
    abandoned_txgs.want(volume.db, what)
    durability.commit()
    volume.position.advance(link)
    raise OlderBucketError(volume.store.url, txg, what, "the local state becomes the next txg")
