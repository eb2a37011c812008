"""The history of a filesystem, from any moment back: what each transaction group changed.

Owns: reading the chain backwards, sums of what a txg changed, which txgs concern a path.
Does not know: how it is shown.
Keeps: nothing is believed that is not named, by hash, by what comes after it, unless what comes
after it is damaged; memory does not grow with the length of the history.

Which names a txg concerns is told by the rows before and after it. So a database of the end is
restored, and the txgs are undone in it, one by one (``Rewinder``): recorded changes can be
inverted. Where a txg is an image, nobody knows what changed; there the one before is restored.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import NamedTuple

import trio

from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.changelog import Changelog, Kind, Section
from s3fs_meta.codec.image import NO_HASH
from s3fs_meta.errors import FormatError, NewerFormatError, ObjectMissingError
from s3fs_meta.limits import HISTORY_FETCHES_MAX
from s3fs_meta.meta import changesets
from s3fs_meta.meta.changesets import Summary
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.trees.path_history import PathWatch
from s3fs_meta.model import Txg
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import Fetched, Link
from s3fs_meta.sync.history.snapshot_mount import Bucket

_NOTHING = Summary(0, 0, 0, 0, 0)


class TxgRecord(NamedTuple):
    """What is told of one transaction group."""

    link: Link
    epoch: int
    kind: Kind
    object_bytes: int  # of its changelog, without parts
    stored_bytes: int  # of content whose place it tells: new, or moved
    changes: Summary | None  # None: it is an image, and nobody knows


class Gap(NamedTuple):
    """A transaction group that is no part of the history any more."""

    txg: Txg
    why: str


class _Names:
    """What the links that were read name: the hash that the next one down must have."""

    def __init__(self, last: Link) -> None:
        self._expected = last.hash
        self._skips = False  # a fence record may name an earlier link than the one before it
        self._is_sure = True  # that the one that has this hash was not passed unread

    def take(self, found: Fetched | Gap) -> Fetched | Gap:
        """Return the next link down if it is the one that was named, else what it is instead.

        Raises:
            FormatError: it is another than the one that was named, or of a newer program.
        """
        if isinstance(found, Gap):
            self._is_sure = False
            return found
        if self._is_sure and found.link.hash != self._expected:
            if self._skips:
                return Gap(found.link.txg, "fsck ended the chain before it")
            key = changelog_codec.key_of(found.link.txg)
            raise FormatError(key, "what follows it in the chain names another")
        chain.require_known(found.changelog)
        self._expected = found.changelog.previous
        self._skips, self._is_sure = found.changelog.kind is Kind.FENCE, True
        return found


async def backwards(bucket: Bucket, last: Link, first: Txg) -> AsyncGenerator[Fetched | Gap, None]:
    """Yield the changelogs from one link back to a txg, the last one first.

    One that is damaged or missing is a gap; what is before it is read all the same. A fence record
    may name an earlier link than the one before it: what is between does not count any more.

    Raises:
        FormatError: one is not the one that what follows it names, or of a newer program.
    """
    if last.hash == NO_HASH:
        return
    names, number = _Names(last), last.txg
    while number >= max(first, 1):
        stop = max(number - HISTORY_FETCHES_MAX, max(first, 1) - 1)
        for found in await _fetch_all(bucket, [Txg(txg) for txg in range(number, stop, -1)]):
            yield names.take(found)
        number = Txg(stop)


async def _fetch_all(bucket: Bucket, numbers: list[Txg]) -> list[Fetched | Gap]:
    found: dict[Txg, Fetched | Gap] = {}

    async def fetch(txg: Txg) -> None:
        try:
            found[txg] = await chain.fetch(bucket.store, bucket.keyring, bucket.uuid, txg)
        except NewerFormatError:
            raise
        except ObjectMissingError:
            found[txg] = Gap(txg, "it is missing")
        except FormatError as exc:
            found[txg] = Gap(txg, exc.what)

    async with trio.open_nursery() as nursery:
        for txg in numbers:
            nursery.start_soon(fetch, txg)
    return [found[txg] for txg in numbers]


async def sections(bucket: Bucket, changelog: Changelog) -> AsyncGenerator[Section, None]:
    """Yield the sections of a changelog, the last one first; one is in memory at a time."""
    yield changelog.section
    for part in reversed(changelog.parts):
        data = (await bucket.store.get(part.key, changelog_codec.PART_SEALED_BYTES_MAX)).data
        yield await trio.to_thread.run_sync(changelog_codec.open_part, part, data, bucket.keyring)


async def describe(bucket: Bucket, fetched: Fetched) -> TxgRecord:
    """Return what is told of a txg."""
    changelog = fetched.changelog
    changes, stored_bytes = _NOTHING, 0
    async with aclosing(sections(bucket, changelog)) as found:
        async for section in found:
            more = await trio.to_thread.run_sync(changesets.summary, section.changeset)
            changes = Summary(*map(sum, zip(changes, more, strict=True)))
            stored_bytes += sum(place.stored_bytes or 0 for place in section.locations)
    return TxgRecord(
        fetched.link,
        changelog.epoch,
        changelog.kind,
        fetched.object_bytes,
        stored_bytes,
        None if changelog.kind is Kind.IMAGE else changes,
    )


class Rewinder:
    """Goes back in a database of its own, and tells which txgs concern a path."""

    def __init__(
        self,
        bucket: Bucket,
        names: list[bytes],
        restore: Callable[[Link], Awaitable[Database]],
    ) -> None:
        """Begin with nothing restored.

        Args:
            bucket: where changelogs are.
            names: of the path, from the root on.
            restore: makes the database of a link; the one before is of no use any more.
        """
        self._bucket = bucket
        self._names = names
        self._restore = restore
        self._db: Database | None = None
        self._watch: PathWatch | None = None

    async def undo(self, fetched: Fetched | Gap) -> bool:
        """Go back over a txg, and return whether it concerns the path; an image or a gap may.

        Args:
            fetched: what comes before that which was undone last.
        """
        if isinstance(fetched, Gap):
            self._db = self._watch = None
            return True
        changelog = fetched.changelog
        if changelog.kind is Kind.IMAGE:
            self._db = self._watch = None
            return True
        if changelog.kind is Kind.FENCE:
            return False
        if self._db is None:
            self._db = await self._restore(fetched.link)
        db = self._db
        if self._watch is None:
            self._watch = PathWatch(db, self._names)
        concerns = await self._concerns(changelog, self._watch)
        db.begin_local()
        try:
            async with aclosing(sections(self._bucket, changelog)) as found:
                async for section in found:
                    await trio.to_thread.run_sync(_undo, db, section.changeset, fetched.link.txg)
        except BaseException:
            db.rollback()
            raise
        db.load_counters()
        db.commit()
        self._watch = PathWatch(db, self._names)
        return concerns or await self._concerns(changelog, self._watch)

    async def _concerns(self, changelog: Changelog, watch: PathWatch) -> bool:
        async with aclosing(sections(self._bucket, changelog)) as found:
            async for section in found:
                touched = await trio.to_thread.run_sync(changesets.touched, section.changeset)
                if await trio.to_thread.run_sync(watch.is_touched, touched):
                    return True
        return False


def _undo(db: Database, changeset: bytes, txg: Txg) -> None:
    where = f"{changelog_codec.key_of(txg)}, undone"
    changesets.apply(db.connection, changesets.invert(changeset), where)
