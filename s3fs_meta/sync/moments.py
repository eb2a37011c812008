"""Which transaction group was current at a time, and which moments can be had at all.

Owns: the search, the bounds of what is kept, the text about a moment that cannot be had.
Does not know: how a moment is restored, how times are written (``option_syntax``).
The times in changelogs strictly increase along the chain, whatever the writers' clocks did: so a
search over the numbers finds the last one that is not later than a time, with one request each.
"""

from contextlib import aclosing
from typing import Final

from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec.changelog import NO_FLOOR
from s3fs_meta.codec.image import NO_HASH
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Lease
from s3fs_meta.errors import (
    ObjectMissingError,
    OlderBucketError,
    SettingsError,
    UnfinishedFilesystemError,
)
from s3fs_meta.limits import MARK_HASH_DIGITS
from s3fs_meta.model import Mark, Moment, ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.option_syntax import written_moment
from s3fs_meta.sync import chain, heads
from s3fs_meta.sync.chain import Link

_WAY_OUT: Final = "leave at_least out"


class Moments:
    """The moments of one filesystem, as its bucket has them."""

    def __init__(self, store: ObjectStore, keyring: Keyring, uuid: str, lease: Lease) -> None:
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        self._lease = lease
        self._known: dict[Txg, Link] = {}
        self.notices: list[str] = []  # one-line facts that the user must hear

    async def find(self, wanted: Moment, now_ns: int) -> Link:
        """Return the last link of the chain that is not later than a moment.

        Raises:
            SettingsError: nobody can have that moment; the text says which ones there are.
            StoreError, FormatError: the bucket cannot be looked at.
        """
        newest = await self.newest()
        if wanted.txg is None and wanted.time_ns is None:
            return newest
        oldest = await self.oldest()
        if wanted.txg is not None:
            return await self._numbered(wanted.txg, oldest, newest)
        assert wanted.time_ns is not None, "neither by number nor the newest"
        if wanted.time_ns < oldest.created_ns:
            raise _too_early(wanted.text, oldest)
        if wanted.time_ns >= newest.created_ns:
            if wanted.time_ns > now_ns:
                self.notices.append(f"{wanted.text} is in the future: taking {told(newest)}")
            return newest
        return await self._search(wanted.time_ns, oldest, newest)

    async def newest(self) -> Link:
        """Return where the chain ends."""
        head = self._lease.head
        if head is None:
            raise UnfinishedFilesystemError(self._store.url)
        numbers = await chain.numbers_from(self._store, head.txg)
        return await self.link(numbers[-1] if numbers else head.txg)

    async def oldest(self) -> Link:
        """Return the first link that somebody can restore: what is retained begins with it.

        While nothing was ever reclaimed, that is the first image with all that follows it.
        """
        floor = (await self.newest()).floor
        if floor > NO_FLOOR:
            return await self.link(floor)
        first = await self._first_changelog()
        images = await self._images()
        for txg in sorted(images):
            if first is None or txg >= first:
                return await self.link(txg)
            if txg + 1 == first:
                found = await self._before_changelogs(images[txg])
                if found is not None:
                    return found
        raise UnfinishedFilesystemError(self._store.url)

    async def link(self, txg: Txg) -> Link:
        """Return the link of a txg.

        Raises:
            ObjectMissingError: the bucket does not have it (any more).
        """
        if txg in self._known:
            return self._known[txg]
        try:
            fetched = await chain.fetch(self._store, self._keyring, self._uuid, txg)
        except ObjectMissingError as exc:
            missing = exc
        else:
            self._known[txg] = fetched.link
            return fetched.link
        key = (await self._images()).get(txg)
        found = None if key is None else await self._before_changelogs(key)
        if found is None:
            raise missing
        return found

    async def _numbered(self, txg: Txg, oldest: Link, newest: Link) -> Link:
        if txg < oldest.txg:
            raise _too_early(f"txg {txg}", oldest)
        if txg > newest.txg:
            raise SettingsError(f"there is no txg {txg} yet: the newest is {told(newest)}")
        return await self.link(txg)

    async def _search(self, time_ns: int, oldest: Link, newest: Link) -> Link:
        """Return the last link from *oldest* to before *newest* that is not later than a time."""
        found, first, stop = oldest, oldest.txg + 1, newest.txg
        while first < stop:  # bounded: the range halves
            middle = Txg((first + stop) // 2)
            try:
                link = await self.link(middle)
            except ObjectMissingError:  # reclaimed at this moment, so too old
                first = middle + 1
                continue
            if link.created_ns <= time_ns:
                found, first = link, middle + 1
            else:
                stop = middle
        return found

    async def _first_changelog(self) -> Txg | None:
        async with aclosing(self._store.list(changelog_codec.PREFIX)) as listing:
            async for info in listing:
                txg = changelog_codec.parse_key(info.key)
                if txg is not None:
                    return txg
        return None

    async def _images(self) -> dict[Txg, ObjectKey]:
        found: dict[Txg, ObjectKey] = {}
        async with aclosing(self._store.list("image/")) as listing:
            async for info in listing:
                name = image_codec.parse_manifest_key(info.key)
                if name is not None:
                    found[name.txg] = info.key
        return found

    async def _before_changelogs(self, key: ObjectKey) -> Link | None:
        """Return the link of an image that is older than the first changelog, None if it is not."""
        manifest = await heads.load_manifest(self._store, self._keyring, key, "")
        if manifest.changelog != NO_HASH or manifest.uuid != self._uuid:
            return None
        return self._known.setdefault(
            manifest.txg, Link(manifest.txg, NO_HASH, manifest.created_ns)
        )


def told(link: Link) -> str:
    """Return what people are told of a moment."""
    return f"txg {link.txg} of {written_moment(link.created_ns)}"


def mark_of(link: Link) -> str:
    """Return a place in the chain as ``at_least`` takes it."""
    return f"{link.txg}:{link.hash[:MARK_HASH_DIGITS]}"


def _too_early(what: str, oldest: Link) -> SettingsError:
    return SettingsError(f"{what} is before the oldest moment that is kept, {told(oldest)}")


async def require_at_least(store: ObjectStore, mark: Mark) -> str | None:
    """Refuse a bucket that is older than a place that somebody remembers, or went another way.

    Returns:
        One line for the user if that cannot be told, None if all is well.

    Raises:
        OlderBucketError: the bucket is not the one that was there.
    """
    if NO_HASH.startswith(mark.hash):
        return None  # before the first changelog: everything is later
    numbers = await chain.numbers_from(store, mark.txg)
    if not numbers:
        raise OlderBucketError(store.url, mark.txg, "it ends before that", _WAY_OUT)
    if numbers[0] != mark.txg:
        return f"txg {mark.txg} is no longer kept, so its hash could not be compared"
    data = await chain.bytes_of(store, mark.txg)
    if not image_codec.content_hash(data).startswith(mark.hash):
        why = "another txg has that number there"
        raise OlderBucketError(store.url, mark.txg, why, _WAY_OUT)
    return None
