"""The log of transaction groups, read backwards from any txg.

Owns: reading the chain backwards, and counting the changes of a txg.
Does not know: how the log is shown, which txgs concern a path (``path_log``).
Keeps: a changelog is used only if the next changelog records its hash, or if the next changelog is
damaged. Memory does not grow with the number of txgs.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from s3fs_meta.background_task import in_thread, run_concurrently
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.changelog import Kind
from s3fs_meta.codec.image import NO_HASH
from s3fs_meta.errors import FormatError, NewerFormatError, ObjectMissingError
from s3fs_meta.limits import HISTORY_FETCHES_MAX
from s3fs_meta.meta import changesets
from s3fs_meta.meta.changesets import Summary
from s3fs_meta.model import Txg
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import FetchedChangelog, Link
from s3fs_meta.sync.history.snapshot_mount import Bucket

_NOTHING = Summary(0, 0, 0, 0, 0)


class TxgRecord(NamedTuple):
    """The facts that ``log`` reports about one transaction group."""

    link: Link
    epoch: int
    kind: Kind
    object_bytes: int  # size of the changelog object, without its parts
    stored_bytes: int  # stored size of the new and moved blocks that the changelog lists
    changes: Summary | None  # None if the txg is an image with unknown changes


class Gap(NamedTuple):
    """A transaction group whose changelog is missing, damaged or abandoned."""

    txg: Txg
    why: str


class _Names:
    """Checks the hashes of changelogs while the chain is read backwards.

    Each changelog records the hash of its predecessor.
    """

    def __init__(self, last: Link) -> None:
        self._expected = last.hash
        self._skips = False  # True after a fence record, which may skip abandoned txgs
        # False from an unreadable changelog until the next readable one.
        self._is_sure = True

    def take(self, found: FetchedChangelog | Gap) -> FetchedChangelog | Gap:
        """Check the hash of the changelog read next; return the changelog, or a gap.

        A gap is returned unchanged; an abandoned changelog before a fence record becomes a gap.

        Raises:
            FormatError: the hash differs, or a newer version of the program wrote the changelog.
        """
        if isinstance(found, Gap):
            self._is_sure = False
            return found
        if self._is_sure and found.link.hash != self._expected:
            if self._skips:
                return Gap(found.link.txg, "fsck ended the chain before this txg")
            key = changelog_codec.key_of(found.link.txg)
            raise FormatError(key, "the next changelog of the chain records a different hash")
        chain.require_known(found.changelog)
        self._expected = found.changelog.previous
        self._skips, self._is_sure = found.changelog.kind is Kind.FENCE, True
        return found


async def backwards(
    bucket: Bucket, last: Link, first: Txg
) -> AsyncGenerator[FetchedChangelog | Gap, None]:
    """Yield the changelogs from a chain position back to a txg, latest first.

    A damaged or missing changelog becomes a gap; the txgs before it are still read. A fence record
    may refer to a changelog before its direct predecessor; the txgs in between were abandoned.

    Raises:
        FormatError: a changelog's hash differs from the hash recorded in the next changelog, or a
            newer version of the program wrote a changelog.
        StoreError: the bucket cannot be read.
    """
    if last.hash == NO_HASH:
        return
    names, number = _Names(last), last.txg
    while number >= max(first, 1):
        stop = max(number - HISTORY_FETCHES_MAX, max(first, 1) - 1)
        for found in await _fetch_all(bucket, [Txg(txg) for txg in range(number, stop, -1)]):
            yield names.take(found)
        number = Txg(stop)


async def _fetch_all(bucket: Bucket, numbers: list[Txg]) -> list[FetchedChangelog | Gap]:
    found: dict[Txg, FetchedChangelog | Gap] = {}

    async def fetch(txg: Txg) -> None:
        try:
            found[txg] = await chain.fetch(bucket.store, bucket.keyring, bucket.uuid, txg)
        except NewerFormatError:
            raise
        except ObjectMissingError:
            found[txg] = Gap(txg, "the changelog is missing")
        except FormatError as exc:
            found[txg] = Gap(txg, exc.what)

    await run_concurrently(partial(fetch, txg) for txg in numbers)
    return [found[txg] for txg in numbers]


async def describe(bucket: Bucket, fetched: FetchedChangelog) -> TxgRecord:
    """Return the facts that ``log`` reports about a txg."""
    changelog = fetched.changelog
    changes, stored_bytes = _NOTHING, 0
    async with aclosing(chain.sections(bucket.store, bucket.keyring, changelog)) as found:
        async for section in found:
            more = await in_thread(changesets.summary, section.changeset)
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
