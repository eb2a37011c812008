"""Points in time: finding the txg that was current at a given time, and the available txgs.

Owns: the search for a txg by its time, the bounds of retention, the error message about an
unavailable point in time.
Does not know: how a txg is restored, how users write times (``option_syntax``).

Within a *time span*, the times of changelogs increase along the chain, so a binary search finds a
txg with one request per step. A new span starts with an image, after a wrong clock was corrected.
The binary search runs in the newest span that starts no later than the wanted time.
"""

from contextlib import aclosing

from s3fs_meta.bucket_errors import BrokenChainError, NoImageError, OlderBucketError
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import kept_point as kept_codec
from s3fs_meta.codec.changelog import NO_FLOOR
from s3fs_meta.codec.image import NO_HASH, ManifestRef
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Lease
from s3fs_meta.errors import (
    FormatError,
    NewerFormatError,
    ObjectMissingError,
    SettingsError,
    UnfinishedFilesystemError,
)
from s3fs_meta.limits import MARK_HASH_DIGITS
from s3fs_meta.model import AbbreviatedLink, ObjectKey, PointInTime, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.options.option_syntax import format_time
from s3fs_meta.sync.chain import chain, levels
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.kept.kept_points import KeptPointReader


class PointsInTime:
    """The points in time that are available in the bucket of one filesystem."""

    def __init__(self, store: ObjectStore, keyring: Keyring, uuid: str, lease: Lease) -> None:
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        self._lease = lease
        self._known: dict[Txg, Link] = {}
        self._unreadable: dict[Txg, str] = {}  # reasons why changelogs are unreadable
        # the keys of manifests; None until they are listed
        self._manifests: dict[Txg, ObjectKey] | None = None
        self.unreadable_end: list[Txg] = []  # unreadable txgs after the last readable one
        # last readable position in the chain, as found by the latest search
        self.end: Link | None = None
        self.notices: list[str] = []  # facts to show to the user, one line each

    async def find(self, wanted: PointInTime, now_ns: int) -> Link:
        """Return the last chain position that is not later than a point in time.

        Raises:
            SettingsError: the point in time is unavailable; the message says which points are
                available.
            BrokenChainError: the position cannot be determined, because a changelog is unreadable.
            StoreError, FormatError: the bucket cannot be read.
        """
        newest = self.end
        # To find a txg up to the known end of the chain, later changelogs need not be listed again.
        if newest is None or wanted.txg is None or wanted.txg > newest.txg:
            newest = await self.newest()
        if wanted.kept is not None:
            return await self._kept(wanted.kept)
        if wanted.txg is None and wanted.time_ns is None:
            self._require_end(newest)
            return newest
        if wanted.txg is not None and wanted.txg <= newest.txg:
            return await self._numbered(wanted.txg, newest)
        if wanted.txg is not None:
            self._require_end(newest, wanted.txg)
            raise SettingsError(
                f"txg {wanted.txg} does not exist yet;"
                f" the newest point in time is {described(newest)}"
            )
        oldest = await self.oldest(newest)
        assert wanted.time_ns is not None, "a point in time has a txg or a time"
        if wanted.time_ns >= newest.created_ns:
            self._require_end(newest)
            if wanted.time_ns > now_ns:
                self.notices.append(f"{wanted.text} is in the future: using {described(newest)}")
            return newest
        stop = newest
        for first in [*await self.span_starts(oldest, newest), oldest]:
            if wanted.time_ns >= first.created_ns:
                return await self._search(wanted.time_ns, first, stop)
            stop = first
        raise _too_early(wanted.text, oldest)

    async def span_starts(self, oldest: Link, newest: Link) -> list[Link]:
        """Return the chain positions after *oldest* that start a time span, newest first."""
        found: list[Link] = []
        for txg in sorted(await self._images(), reverse=True):
            if oldest.txg < txg <= newest.txg and await self.readable(txg) is not None:
                try:
                    fetched = await chain.fetch(self._store, self._keyring, self._uuid, txg)
                except (FormatError, ObjectMissingError):
                    continue  # only the changelog records whether its txg starts a time span
                if fetched.changelog.begins_span:
                    found.append(fetched.link)
        return found

    async def newest(self) -> Link:
        """Return the last readable position; record it, and all later (unreadable) txgs."""
        head = self._lease.head
        if head is None:
            raise UnfinishedFilesystemError(self._store.url)
        self.unreadable_end, self._manifests = [], None
        for stop in (None, head.txg):
            if stop is None:
                numbers = await self.txgs_after_head()
            else:
                numbers = await chain.numbers_from(self._store, self._keyring, Txg(0))
            for txg in reversed([txg for txg in numbers if stop is None or txg < stop]):
                link = await self.readable(txg)
                if link is not None:
                    self.end = link
                    return link
                self.unreadable_end.insert(0, txg)
            if not self.unreadable_end:  # the bucket has no changelogs yet
                self.end = await self.link(head.txg)
                return self.end
        raise self._broken(Txg(0), self.unreadable_end[-1])

    async def txgs_after_head(self) -> list[Txg]:
        """Return all txgs from the head on that have a changelog, and the last txg, ascending.

        A level object may show that the last txg exists although its changelog is missing.
        """
        head = self._lease.head
        if head is None:
            raise UnfinishedFilesystemError(self._store.url)
        numbers = await chain.numbers_from(self._store, self._keyring, head.txg)
        end = max(numbers, default=head.txg)
        last = await levels.last_after(self._store, self._keyring, end)
        return [*numbers, last] if last > end else numbers

    def _require_end(self, newest: Link, txg: Txg | None = None) -> None:
        """Raise BrokenChainError if *txg* (None: any txg) is after *newest* and unreadable."""
        end = self.unreadable_end[-1] if self.unreadable_end else newest.txg
        if newest.txg < (end if txg is None else txg) <= end:
            raise self._broken(newest.txg, end)

    def _broken(self, last: Txg, end: Txg) -> BrokenChainError:
        first = Txg(last + 1)
        what = self._unreadable.get(first, "the changelog is missing")
        return BrokenChainError(changelog_codec.key_of(first), what, last, end)

    async def oldest(self, newest: Link | None = None) -> Link:
        """Return the chain position of the oldest retained txg, the first that can be restored.

        Before the first garbage collection, this is the first image after which no changelog is
        missing.

        Args:
            newest: the last readable chain position; None: search for it.

        Raises:
            NoImageError: there is no such image, for example because its manifest is damaged.
        """
        if newest is None:
            newest = await self.newest()
        if newest.floor > NO_FLOOR:
            return await self._first_readable(newest.floor, newest)
        listed = await chain.listed_from(self._store, Txg(0), 1)
        images = await self._images()
        for txg in sorted(images):
            link = None
            if not listed or txg >= listed[0]:
                link = await self.readable(txg)
            elif txg + 1 == listed[0]:
                link = await self._before_changelogs(images[txg])
            if link is not None:
                return link
        head = self._lease.head
        assert head is not None, "newest() needs the head"
        why = "no image has both a readable manifest and all changelogs after it"
        raise NoImageError(head.manifest_key, why, newest.txg)

    async def _first_readable(self, first: Txg, newest: Link) -> Link:
        """Return the first readable position from txg *first* on, but no later than *newest*."""
        txg = first
        while txg < newest.txg:
            link = await self.readable(txg)
            if link is not None:
                return link
            [txg] = await chain.listed_from(self._store, Txg(txg + 1), 1) or [newest.txg]
        return newest

    async def link(self, txg: Txg) -> Link:
        """Return the chain position of a txg, from its changelog, an image or a level object.

        Raises:
            ObjectMissingError: the bucket does not have the txg, or it was deleted.
            FormatError: the changelog is damaged, and no image or level object records the
                position.
        """
        if txg in self._known:
            return self._known[txg]
        try:
            found = (await chain.fetch(self._store, self._keyring, self._uuid, txg)).link
        except NewerFormatError:
            raise
        except (ObjectMissingError, FormatError) as exc:
            damage: ObjectMissingError | FormatError = exc
        else:
            self._known[txg] = found
            return found
        key = (await self._images()).get(txg)
        other = None if key is None else await self._link_of_image(key)
        if other is None:
            other = await levels.link_of_end(self._store, self._keyring, self._uuid, txg)
        if other is None:
            raise damage
        self._known[txg] = other
        return other

    async def readable(self, txg: Txg) -> Link | None:
        """Return the chain position of a txg as ``link`` does, or None if that is impossible."""
        if txg in self._unreadable:
            return None
        try:
            return await self.link(txg)
        except NewerFormatError:
            raise
        except ObjectMissingError:
            self._unreadable[txg] = "the changelog is missing"
        except FormatError as exc:
            self._unreadable[txg] = exc.what
        return None

    def why_unreadable(self, txg: Txg) -> str:
        """Return the reason why ``readable`` could not read a changelog."""
        return self._unreadable[txg]

    async def _numbered(self, txg: Txg, newest: Link) -> Link:
        """Return the chain position of a txg that is not later than *newest*.

        Other changelogs are read only to describe an error, so damage to them does no harm.
        """
        link = await self.readable(txg)
        if link is not None and (link.txg >= newest.floor or await self.is_kept(txg)):
            return link
        oldest = await self.oldest()
        if txg < oldest.txg:
            raise _too_early(f"txg {txg}", oldest)
        raise await self._unreadable_at(txg)

    async def _kept(self, name: str) -> Link:
        """Return the chain position of a kept point, which may be below the retention floor.

        Raises:
            SettingsError: no kept point has the name.
            FormatError: the kept point is damaged, or belongs to another history of this
                filesystem.
        """
        point = await KeptPointReader(self._store, self._keyring, self._uuid).find(name)
        link = await self.readable(point.txg)
        if link is None:  # a level object may replace the unreadable changelog
            return Link(point.txg, point.hash, point.created_ns)
        if link.hash != point.hash:
            raise FormatError(
                changelog_codec.key_of(point.txg),
                f"the changelog does not match the kept point {name!r}: the history in"
                " the bucket has been replaced since the point was kept",
            )
        return link

    async def is_kept(self, txg: Txg) -> bool:
        """Return whether the bucket has an object key of a kept point with this txg.

        Any user of the bucket can create such a key. So the result only decides whether a restore
        is attempted.
        """
        async with aclosing(self._store.list(kept_codec.prefix_of(txg))) as listing:
            async for info in listing:
                if kept_codec.parse_key(info.key) is not None:
                    return True
        return False

    async def _unreadable_at(self, txg: Txg) -> BrokenChainError:
        """Return the error for an unreadable txg, with the last readable txg before it."""
        first, stop = txg, (await self.oldest()).txg
        while first > stop and await self.readable(Txg(first - 1)) is None:
            first = Txg(first - 1)
        return self._broken(Txg(first - 1), txg)

    async def _search(self, time_ns: int, oldest: Link, newest: Link) -> Link:
        """Return the last position from *oldest* to before *newest* that is not later than a time.

        Raises:
            BrokenChainError: the changelog after the found position is unreadable. Its time is
                unknown, so this changelog may be the right result.
        """
        found, first, stop = oldest, oldest.txg + 1, newest.txg
        while first < stop:  # the loop ends, because each pass shrinks the range
            middle = Txg((first + stop) // 2)
            link = await self._first_readable(middle, newest)
            if link.txg >= stop or link.created_ns > time_ns:
                stop = middle
            else:
                found, first = link, link.txg + 1
        after = Txg(found.txg + 1)
        if after < newest.txg and await self.readable(after) is None:
            raise self._broken(found.txg, after)
        return found

    async def _images(self) -> dict[Txg, ObjectKey]:
        """Return the keys of manifests, which are listed once for each search of the newest txg."""
        if self._manifests is not None:
            return self._manifests
        found: dict[Txg, ObjectKey] = {}
        async with aclosing(self._store.list("image/")) as listing:
            async for info in listing:
                name = image_codec.parse_manifest_key(info.key)
                if name is not None:
                    found[name.txg] = info.key
        self._manifests = found
        return found

    async def _before_changelogs(self, key: ObjectKey) -> Link | None:
        """Return the chain position of an image that is older than all changelogs, or None."""
        link = await self._link_of_image(key)
        return link if link is not None and link.hash == NO_HASH else None

    async def _link_of_image(self, key: ObjectKey) -> Link | None:
        """Return an image's chain position, or None if it is unreadable or not in the chain."""
        try:
            manifest = await image_head.load_manifest(self._store, self._keyring, ManifestRef(key))
            return await chain.link_of_image(self._store, self._keyring, self._uuid, manifest, key)
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError):
            return None


def described(link: Link) -> str:
    """Return the txg and the time of a chain position as text for messages."""
    return f"txg {link.txg} of {format_time(link.created_ns)}"


def mark_of(link: Link) -> str:
    """Return the text that a user can pass as ``at_least`` to require a chain position."""
    return f"{link.txg}:{link.hash[:MARK_HASH_DIGITS]}"


def _too_early(what: str, oldest: Link) -> SettingsError:
    return SettingsError(f"{what} is before the oldest retained point in time, {described(oldest)}")


async def require_at_least(
    store: ObjectStore,
    keyring: Keyring,
    uuid: str,
    mark: AbbreviatedLink,
    served: Link | None = None,
) -> str | None:
    """Raise an error if the bucket is older than a required txg, or has another history.

    Args:
        store: the bucket.
        keyring: the keys of the filesystem.
        uuid: the UUID of the filesystem.
        mark: the required txg.
        served: the chain position that the mount shows; None if the filesystem is not open yet:
            check the bucket instead.

    Returns:
        One line for the user if the hashes cannot be compared; None if the bucket contains the
        required txg.

    Raises:
        OlderBucketError: the required txg is missing, or the bucket's txg with this number differs.
    """

    def older(why: str) -> OlderBucketError:
        return OlderBucketError(store.url, mark.txg, why, "mount without at_least")

    # Do not use a newer listing: the mount shows *served*.
    if served is not None and served.txg < mark.txg:
        raise older(f"the last txg that can be shown is {served.txg}")
    if NO_HASH.startswith(mark.hash):
        return None  # no bucket is older than an empty chain
    try:
        if served is not None and served.txg == mark.txg:
            found = served.hash
        else:
            found = image_codec.content_hash(await chain.bytes_of(store, mark.txg))
    except ObjectMissingError as exc:
        missing = exc
    else:
        if not found.startswith(mark.hash):
            raise older("the bucket has a different txg with that number")
        return None
    why = await _why_missing(store, keyring, uuid, mark, served)
    if why:
        raise older(why) from missing
    return f"txg {mark.txg} is no longer retained, so its hash could not be compared"


async def _why_missing(
    store: ObjectStore, keyring: Keyring, uuid: str, mark: AbbreviatedLink, served: Link | None
) -> str:
    """Return why the required changelog should exist, or "" if it may have been deleted."""
    if served is None:
        later = await chain.listed_from(store, Txg(mark.txg + 1), 1)
        return "" if later else "the bucket's last txg is earlier than the required txg"
    if not mark.txg >= served.floor > NO_FLOOR:
        return ""
    # Another host may have raised the floor after it wrote *served*.
    floor = await chain.floor_after(store, keyring, uuid, served.txg)
    is_retained = mark.txg >= floor
    return "its changelog is missing, although it should be retained" if is_retained else ""
