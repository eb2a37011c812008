"""The statistics that ``status`` reports about a mount, computed without a scan.

Owns: names and units of the statistics (docs/reference/metrics.md explains them).
Does not know: how statistics are displayed.
"""

import os
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import trio

from s3fs_meta.model import BlockState
from s3fs_meta.mount.plan import MountPlan
from s3fs_meta.mount.stores import with_options
from s3fs_meta.objects.billing import NOTHING, RequestClass
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.metrics import CountingStore
from s3fs_meta.objects.retry import outage_of
from s3fs_meta.sync.history.points_in_time import mark_of
from s3fs_meta.sync.host_state.request_log import RequestLog
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.upload.throughput import Speed


def figures(session: Session, plan: MountPlan) -> dict[str, Any]:
    """Return the statistics of a mount. Never yields to other tasks."""
    place, at = plan.place, plan.options.at
    counters = session.db.counters
    head = session.volume.keeper.lease.head
    outage = _outage(session.volume.store)
    complete = partial(with_options, url=place.url, options=plan.s3, state=place.state)
    found: dict[str, Any] = {
        "url": place.url,
        "endpoint": session.volume.store.endpoint,
        "mountpoint": str(plan.mountpoint),
        "uuid": session.volume.uuid,
        "label": session.volume.superblock.label,
        "state": session.status.state.value,
        "why": complete(session.status.why),
        "read_only": session.status.read_only,
        "ships": session.status.ships,
        "offline": session.offline,
        "at": None if at is None else at.text,
        "journal_mode": session.db.pragmas.journal_mode,
        "pid": os.getpid(),
        "epoch": session.volume.keeper.epoch,
        "txg": counters.txg,
        "inodes": counters.inodes,
        "dentries": counters.dentries,
        "file_bytes": counters.file_bytes,
        "block_bytes": counters.block_bytes,
        "stored_bytes": counters.stored_bytes,
        "capacity_bytes": counters.capacity_bytes,
        "dedup_ratio": ratio(counters.file_bytes, counters.block_bytes),
        "compression_ratio": _compression(session),
        "cache": _cache(session),
        "disk": {"free_bytes": _free_bytes(session)},
        "upload": _upload(session, outage),
        "chain": _chain(session),
        "image": {
            "txg": head.txg if head is not None else None,
            "last_ns": session.imager.last_ns,
            "last_error": session.imager.last_error,
        },
        "compaction": {"last_error": session.compactor.last_error},
        "reclaim": {"last_error": session.reclaimer.last_error},
        "follow": _follow(session),
        "store": _store(session.volume.store),
        "billed": billed(session.volume.store),
        "outage": outage,
    }
    for part in found.values():
        if isinstance(part, dict) and part.get("last_error"):
            part["last_error"] = complete(part["last_error"])
    return found


def _compression(session: Session) -> float | None:
    """Return the size of the uploaded blocks divided by the size of their packs.

    Return None while more than 1 % of the bytes of all blocks are not uploaded: blocks and packs
    are counted at different times, so the ratio would be wrong.
    """
    counters, pending_bytes = session.db.counters, session.cache.index.pending_bytes
    if pending_bytes * 100 > counters.block_bytes:
        return None
    return ratio(counters.block_bytes - pending_bytes, counters.stored_bytes)


def ratio(total: int, part: int) -> float | None:
    """Return the ratio of *total* to *part*, or None if *part* is 0."""
    return round(total / part, 3) if part else None


def _cache(session: Session) -> dict[str, Any]:
    cache = session.cache
    lookups = cache.hits + cache.misses
    return {
        "bytes": cache.index.total_bytes,
        "bytes_max": session.cache.bytes_max,
        "blocks": cache.index.total_count,
        "dirty_bytes": cache.index.bytes_in[BlockState.DIRTY],
        "pinned_bytes": cache.index.pinned_bytes,
        "hits": cache.hits,
        "misses": cache.misses,
        "hit_ratio": round(cache.hits / lookups, 4) if lookups else None,
    }


def _free_bytes(session: Session) -> int | None:
    """Return the number of bytes that programs can still write to the local disk.

    An operation may evict clean blocks, but it must not use the reserve. Return None if the disk
    does not report its free space.
    """
    cache = session.cache
    try:
        unheld_bytes = cache.disk.unheld_bytes()
    except OSError:
        return None
    return max(unheld_bytes + cache.index.evictable_bytes, 0)


def _upload(session: Session, outage: Mapping[str, Any]) -> dict[str, Any]:
    pending_bytes = session.cache.index.pending_bytes
    throughput = session.uploader.throughput
    # Speed and remaining time are unknown while uploads fail or the store does not respond.
    is_stuck = bool(session.uploader.last_error) or outage["age_s"] > 0
    speed = None if is_stuck else throughput.speed(trio.current_time())
    if speed is not None:  # apply the rate limit: the measured speed excludes waiting for it
        speed = speed.within(session.throttles.upload.bytes_per_s)
    return {
        "pending_blocks": session.cache.index.pending_count,
        "pending_bytes": pending_bytes,
        "pending_packs": -(-pending_bytes // session.uploader.bounds.pack_bytes),
        "packs_uploaded": session.uploader.uploaded_packs,
        "sent_bytes": throughput.sent_bytes,
        "sent_bytes_per_s": None if speed is None else round(speed.sent_bytes),
        "left_s": None if speed is None else _left_s(pending_bytes, speed),
        "lost_blocks": len(session.uploader.lost),
        "last_error": session.uploader.last_error,
    }


def _left_s(pending_bytes: int, speed: Speed) -> float:
    """Return the time that the upload of all dirty blocks takes at a given speed."""
    return round(pending_bytes / max(speed.content_bytes, 1), 1)


def _chain(session: Session) -> dict[str, Any]:
    """Return statistics about the last shipped txg and the oldest unshipped change."""
    shipper, link = session.shipper, session.volume.position.link
    oldest_ns = shipper.oldest_ns
    return {
        "txg": link.txg,
        "created_ns": link.created_ns,
        "hash": link.hash,
        "mark": mark_of(link),
        "unshipped_since_ns": oldest_ns,
        "unshipped_age_s": round((time.time_ns() - oldest_ns) / 1e9, 3) if oldest_ns else 0.0,
        "unshipped_bytes": session.volume.recorder.bytes,
        "last_error": shipper.last_error,
    }


def _follow(session: Session) -> dict[str, Any]:
    """Return how far a follower is behind the writer; empty values for any other mount."""
    follower = session.follower
    if follower is None or not session.db.follows:
        return dict.fromkeys(("polled_ns", "behind_s", "last_error"))
    return {
        "polled_ns": follower.polled_ns,
        "behind_s": round(max(time.time_ns() - follower.polled_ns, 0) / 1e9, 3),
        "last_error": follower.last_error,
    }


def requests_today(log: RequestLog) -> dict[str, int]:
    """Return the billed requests of the current day (UTC), and their bytes."""
    found = log.today()
    requests = {f"{one.value}_requests": found.get(one.value, NOTHING) for one in RequestClass}
    return {name: billed.requests for name, billed in requests.items()} | {
        "sent_bytes": sum(billed.sent_bytes for billed in requests.values()),
        "received_bytes": sum(billed.received_bytes for billed in requests.values()),
    }


def _outage(store: ObjectStore) -> dict[str, Any]:
    """Return the duration and the reason of a store's outage; 0 and "" if the store responds."""
    found = outage_of(store)
    return {
        "age_s": round(found.age_s, 3),
        "why": found.why,
        "silent_s": round(found.silent_s, 3),
    }


def billed(store: ObjectStore) -> dict[str, dict[str, dict[str, int]]]:
    """Return the billed requests since the mount, and their bytes, by cause and class."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    if isinstance(store, CountingStore):
        for (cause, kind), counts in sorted(store.meter.totals().items()):
            found.setdefault(cause, {})[kind] = counts._asdict()
    return found


def _store(store: ObjectStore) -> dict[str, Any]:
    """Return requests, errors and bytes by method; empty if the store does not count them."""
    if not isinstance(store, CountingStore):
        return {}
    return {
        method: {
            "requests": counts.requests,
            "errors": counts.errors,
            "sent_bytes": counts.sent_bytes,
            "received_bytes": counts.received_bytes,
        }
        for method, counts in store.counts.items()
    }
