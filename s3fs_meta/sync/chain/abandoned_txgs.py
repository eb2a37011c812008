"""Abandoning unreadable txgs at the end of the chain, or publishing the local state instead.

Owns: the txg number after which the chain continues, the permission to abandon txgs, the report
about abandoned txgs, the row ``mend`` of ``local_state``.
Does not know: which database becomes the next txg, how it is published (``image.writer``).
Keeps: no object is overwritten or deleted. The chain continues with a txg above those of all its
objects in the bucket. A fence record that refers to the last valid txg comes first, then a
changelog of kind IMAGE.
Design: docs/design/durability.md, "The chain".
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, NamedTuple

from s3fs_meta.bucket_errors import OlderBucketError, UnfitRecordsError
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.changelog import Kind
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Lease
from s3fs_meta.counted import counted
from s3fs_meta.errors import (
    FormatError,
    NewerFormatError,
    ObjectMissingError,
    SettingsError,
)
from s3fs_meta.limits import ABANDONED_SHOWN_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import local_state
from s3fs_meta.model import Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.options.option_syntax import format_time
from s3fs_meta.sync.chain import chain, names
from s3fs_meta.sync.chain.chain import FetchedChangelog, Link
from s3fs_meta.sync.progress import Progress

_log = logging.getLogger(__name__)

_ROW: Final = "mend"
_PUT_BACK: Final = "put back"


Publish = Callable[[Progress], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Mend:
    """The user's choices for opening a filesystem for writing if its last txgs are unreadable."""

    # abandon all txgs after this one, even those of another writer; None if the user chose no txg
    end_at: Txg | None = None
    # True if the user chose an earlier end of the chain, which also abandons txgs of other hosts.
    anything: bool = False
    # True to publish the local state if the bucket lacks the last txg of this host
    publish_local: bool = False


class Behind(NamedTuple):
    """The lower bounds of the next txg's number and time."""

    txg: Txg
    created_ns: int
    # last valid position in the chain; None to use the one in the local database
    link: Link | None = None


NOTHING: Final = Behind(Txg(0), 0)


def want(db: Database, why: str) -> None:
    """Record that the next txg must be an image. Requires an open transaction."""
    local_state.put(db, _ROW, why)


def wanted(db: Database) -> str | None:
    """Return the reason why the next txg must be an image, or None if it need not be one."""
    return local_state.get(db, _ROW)


def want_after(db: Database, noticed: OlderBucketError | UnfitRecordsError) -> None:
    """Log why no changelog can be shipped, and record that the next txg must be an image."""
    _log.error("%s", noticed)
    db.begin_local()
    is_older = isinstance(noticed, OlderBucketError)
    want(db, put_back(noticed.message) if is_older else noticed.message)


def put_back(why: str) -> str:
    """Return the reason to record for an image that replaces changelogs lost from the bucket."""
    return f"{_PUT_BACK}: {why}"


def is_put_back(why: str) -> bool:
    """Return whether ``put_back`` returned this reason; if so, the bucket may also lack packs."""
    return why.startswith(_PUT_BACK)


def done(db: Database) -> None:
    """Delete the record made by ``want``: the last txg is an image. Requires a transaction."""
    local_state.delete(db, _ROW)


async def behind_all(
    store: ObjectStore, keyring: Keyring, uuid: str, lease: Lease, kept: Link
) -> Behind:
    """Return the bounds for the txg after all objects; *kept* is the last valid position."""
    head = Txg(0) if lease.head is None else lease.head.txg
    last = await names.last_name(store, keyring, max(head, kept.txg))
    created_ns = kept.created_ns
    for txg in reversed(await chain.numbers_after(store, keyring, kept.txg)):
        fetched = await _read(store, keyring, uuid, txg)
        if isinstance(fetched, FetchedChangelog):
            created_ns = max(created_ns, fetched.link.created_ns)
            break
    return Behind(last, created_ns)


# --- abandon txgs ------------------------------------------------------------------------------


class Right(NamedTuple):
    """The facts from which ``require_right`` decides whether this host may abandon txgs."""

    mend: Mend
    lease: Lease  # the lease as read from the bucket
    holder: str  # random name that identifies this host's state directory in the lease
    own: Txg | None = None  # the last txg in the local rows that this host may have written
    no_image: bool = False  # True if no image can be restored, so that fsck --rebuild may help


async def require_right(
    store: ObjectStore, keyring: Keyring, uuid: str, kept: Txg, last: Txg, right: Right
) -> None:
    """Raise SettingsError unless the user or the lease allows this host to abandon txgs.

    Args:
        kept: the last valid txg.
        last: the last txg to abandon.

    Raises:
        SettingsError: the txgs must not be abandoned; the message lists the alternatives.
    """
    mend, lease = right.mend, right.lease
    if mend.anything or mend.end_at == kept:
        return
    lost = f"txg {last}" if last == kept + 1 else f"txgs {kept + 1} to {last}"
    if mend.end_at is not None:
        raise SettingsError(
            f"the last txg that can be restored is {kept}, so the chain cannot end at txg"
            f" {mend.end_at}; --end-at={kept} abandons {lost}"
        )
    before = await _read(store, keyring, uuid, kept)
    epoch = before.changelog.epoch if isinstance(before, FetchedChangelog) else None
    if lease.holder == right.holder and epoch == lease.epoch:
        newer = await _last_unknown(store, keyring, uuid, right)
        if newer is None:
            return
        rebuild = (
            " If the changelogs from txg 1 on are intact, move the state directory away, and"
            " s3fs-meta fsck --rebuild applies them."
            if right.no_image
            else ""
        )
        raise SettingsError(
            f"{lost} cannot be restored, and the local state is an older copy: its last txg is"
            f" {right.own}, but a newer copy of this state directory has written txg {newer}. If you"
            f" have the newer copy, put it back.{rebuild} Otherwise s3fs-meta fsck -y"
            f" --end-at={kept} abandons {lost}; the newest state is then txg {kept}"
        )
    raise SettingsError(
        f"{lost} cannot be restored, and another host may have written it: host {lease.host!r} had"
        f" the lease last, in epoch {lease.epoch}. If that host still has its state directory,"
        f" a mount or s3fs-meta fsck -y on that host uploads the changes again. Otherwise"
        f" s3fs-meta fsck -y --end-at={kept} abandons {lost}; the newest state is then txg {kept}"
    )


async def _last_unknown(
    store: ObjectStore, keyring: Keyring, uuid: str, right: Right
) -> Txg | None:
    """Return the last readable txg of the lease's epoch that this state directory did not write.

    A copy of the state directory has written this txg. Unreadable changelogs are ignored, because
    their writer is unknown.
    """
    if right.own is None:
        return None
    for txg in reversed(await chain.numbers_from(store, keyring, right.own)):
        found = await _read(store, keyring, uuid, txg) if txg > right.own else ""
        if isinstance(found, FetchedChangelog):
            return txg if found.changelog.epoch >= right.lease.epoch else None
    return None


async def describe(
    store: ObjectStore,
    keyring: Keyring,
    uuid: str,
    kept: Link,
    last: Txg,
    *,
    shown_max: int = ABANDONED_SHOWN_MAX,
) -> list[str]:
    """Return one line with the known facts about each of the first few abandoned txgs."""
    sizes: dict[Txg, int] = {}
    after = changelog_codec.key_of(kept.txg) if kept.txg else changelog_codec.PREFIX
    async with aclosing(store.list(changelog_codec.PREFIX, after=after)) as listing:
        async for info in listing:
            txg = changelog_codec.parse_key(info.key)
            if txg is not None and len(sizes) < shown_max:
                sizes[txg] = info.size_bytes
    numbers = range(kept.txg + 1, min(last, kept.txg + shown_max) + 1)
    lines = [
        _line(Txg(txg), await _read(store, keyring, uuid, Txg(txg)), sizes.get(Txg(txg)))
        for txg in numbers
    ]
    more = last - kept.txg - len(lines)
    return [*lines, f"… and {counted(more, 'more txg')}"] if more else lines


def _line(txg: Txg, found: FetchedChangelog | str, size_bytes: int | None) -> str:
    if isinstance(found, str):
        size = "" if size_bytes is None else f", {size_bytes} bytes"
        return f"txg {txg} is abandoned: {found}{size}"
    kind = "" if found.changelog.kind is Kind.GROUP else f", kind {found.changelog.kind.value}"
    return (
        f"txg {txg} is abandoned: written {format_time(found.link.created_ns)}, epoch"
        f" {found.changelog.epoch}, {found.object_bytes} bytes{kind}; it cannot be restored"
        " without the txgs before it"
    )


async def _read(
    store: ObjectStore, keyring: Keyring, uuid: str, txg: Txg
) -> FetchedChangelog | str:
    """Return the changelog of a txg, or the reason why it cannot be read."""
    try:
        return await chain.fetch(store, keyring, uuid, txg)
    except NewerFormatError:
        raise
    except ObjectMissingError:
        return "its changelog is missing"
    except FormatError as exc:
        return f"its changelog is damaged ({exc.what})"
