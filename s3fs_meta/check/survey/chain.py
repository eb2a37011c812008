"""The survey of the chain in the bucket: changelogs from the oldest retained image to the last one.

Owns: reading changelogs. Changelogs after the newest image are always read. Older changelogs serve
only earlier points in time: they must be in the listing, and are read only with --deep, or if a
changelog before them is missing.
Does not know: which observations are faults (``rules.bucket``).
Tasks: one, which requests up to FETCHES_MAX changelogs concurrently. No transaction may be open.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from s3fs_meta.background_task import in_thread, run_concurrently
from s3fs_meta.check.context import SurveyContext
from s3fs_meta.check.observations import Need
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import level as level_codec
from s3fs_meta.codec.changelog import Kind, PartRef
from s3fs_meta.codec.image import Manifest
from s3fs_meta.errors import CorruptionError, FormatError, ObjectMissingError
from s3fs_meta.limits import FETCHES_MAX, MEND_PROBES_MAX, TEXT_OBJECT_BYTES_MAX
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.sync.chain import chain, levels, names
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.chain.chain import FetchedChangelog, Link

_PARTS: Final = changelog_codec.PART_PREFIX


async def survey(context: SurveyContext) -> None:
    """Record missing or damaged changelogs and parts, from the oldest retained image to the last txg.

    Call this after ``bucket.survey``. If the lease or its image is unreadable, no fault is
    recorded, because I48 reports the object.

    Raises:
        StoreError: the store is unavailable or refuses the request.

    Always yields to other tasks.
    """
    await _Chain(context).run()
    context.exam.evidence.surveyed |= Need.CHAIN


class _Step(NamedTuple):
    """The part of a readable changelog that shows whether it continues the chain before it."""

    kind: Kind
    previous: str  # hash of the previous changelog, as the changelog records it
    hash: str


class _Chain:
    """The state of one survey that reads the changelogs in the bucket."""

    def __init__(self, context: SurveyContext) -> None:
        self._context = context
        self._exam = context.exam
        self._store = context.store
        self._keyring = context.keyring
        self._progress = context.progress
        self._deep = context.deep
        self._uuid = ""
        self._past: dict[Txg, str] = {}  # faults of changelogs that precede the newest image
        # Changelogs after the unreadable txg that is examined; None if a changelog is unreadable.
        self._later: dict[Txg, _Step | None] = {}

    async def run(self) -> None:
        """Check the changelogs after the newest image, then the retained changelogs before it."""
        head = await self._head()
        if head is None:
            return
        key, manifest = head
        self._uuid = manifest.uuid
        end = await self._end(manifest.txg)
        numbers = sorted(txg for txg in self._listed_numbers() if txg <= end)
        try:
            await chain.fetch_of_image(self._store, self._keyring, self._uuid, manifest, key)
            link = await chain.link_of_image(self._store, self._keyring, self._uuid, manifest, key)
        except (FormatError, ObjectMissingError) as exc:
            self._fault(changelog_codec.key_of(manifest.txg), str(exc), past=False)
            return
        last = await self._read(link, end, past=False)
        base = self._base(last.floor)
        if base is None or base >= manifest.txg:
            return
        listed = set(numbers)
        for txg in range(base, manifest.txg):
            if txg and txg not in listed:
                self._past[Txg(txg)] = "it is missing"
        if self._deep:
            await self._read(Link(Txg(base), "", 0), Txg(manifest.txg - 1), past=True)
        await self._note_past(manifest.txg)

    async def _head(self) -> tuple[ObjectKey, Manifest] | None:
        try:
            lease = lease_codec.decode(
                lease_codec.KEY,
                (await self._store.get(lease_codec.KEY, TEXT_OBJECT_BYTES_MAX)).data,
            )
            if lease.head is None:
                return None
            ref = lease.head.manifest
            return ref.key, await image_head.load_manifest(self._store, self._keyring, ref)
        except (ObjectMissingError, CorruptionError):
            return None

    async def _end(self, head: Txg) -> Txg:
        """Return the last plausible txg of the chain; record objects with later txgs as foreign."""
        changelogs = self._named(changelog_codec.PREFIX)
        reached = await names.reached(
            self._store, self._keyring, head, changelogs, names.CHANGELOG_STEP_MAX
        )
        parts, found = self._named(_PARTS), self._named(level_codec.PREFIX)
        end = await names.reached(self._store, self._keyring, reached, parts + found)
        later = [name for name in found if reached < name[0] <= end]
        last = await levels.last_authentic(self._store, self._keyring, reached, later)
        foreign = [key for txg, key in changelogs + found if txg > last]
        foreign.extend(key for txg, key in parts if txg > end)
        self._exam.evidence.note_foreign(foreign)
        return last

    def _named(self, prefix: str) -> list[names.Name]:
        """Return the listed keys with a prefix, each with its txg."""
        sql = "SELECT object_key FROM temp.seen_objects WHERE object_key GLOB ?"
        keys = [ObjectKey(str(row[0])) for row in self._exam.db.all(sql, (f"{prefix}*",))]
        return [(names.txg_of(key), key) for key in keys]

    def _listed_numbers(self) -> Iterator[Txg]:
        sql = "SELECT object_key FROM temp.seen_objects WHERE object_key GLOB 'changelog/*'"
        for row in self._exam.db.all(sql):
            txg = changelog_codec.parse_key(row[0])
            if txg is not None:
                yield txg

    def _base(self, floor: Txg) -> Txg | None:
        """Return the txg of the newest listed image at or below the retention floor."""
        sql = "SELECT object_key FROM temp.seen_objects WHERE object_key GLOB 'image/*/manifest'"
        names = [image_codec.parse_manifest_key(row[0]) for row in self._exam.db.all(sql)]
        return max((name.txg for name in names if name and name.txg <= floor), default=None)

    async def _note_past(self, head: Txg) -> None:
        """Record faults of changelogs before the newest image; ignore abandoned changelogs."""
        mended = Txg(0)  # txg at which the latest repair continued the chain
        for txg in sorted(self._past):
            if txg < mended:
                continue
            mended = await self._mended_after(txg, head)
            if mended:
                self._exam.report.remember(
                    f"points in time from txg {txg} to {mended - 1} cannot be restored: an earlier"
                    f" repair abandoned them and continued the chain at txg {mended}"
                )
            else:
                self._fault(changelog_codec.key_of(txg), self._past[txg], past=True)

    async def _mended_after(self, txg: Txg, head: Txg) -> Txg:
        """Return the txg at which a repair continued the chain after an unreadable txg, or 0.

        A repair writes a changelog of kind IMAGE. Neither that changelog nor its fence record
        contains the hash of a changelog after the unreadable txg.
        """
        hashes: set[str] = set()  # hashes of all changelogs after the unreadable txg
        # True if the previous changelog is a fence record that contains none of *hashes*.
        skips = False
        stop = min(head, txg + MEND_PROBES_MAX) + 1
        # Keep the changelogs already read, because the check of the next txg needs most of them.
        self._later = {at: step for at, step in self._later.items() if at > txg}
        for number in range(txg + 1, stop):
            if number not in self._later:
                await self._fetch_later(range(number, min(number + FETCHES_MAX, stop)))
            step = self._later[Txg(number)]
            if step is None:
                skips = False
                continue
            follows = step.previous in hashes
            if step.kind is Kind.IMAGE and (skips or not follows):
                return Txg(number)
            skips = step.kind is Kind.FENCE and not follows
            hashes.add(step.hash)
        return Txg(0)

    async def _fetch_later(self, numbers: range) -> None:
        """Fetch changelogs after an unreadable txg, all at the same time."""

        async def fetch(txg: Txg) -> None:
            self._later[txg] = None
            with contextlib.suppress(FormatError, ObjectMissingError):
                found = await chain.fetch(self._store, self._keyring, self._uuid, txg)
                made = found.changelog
                self._later[txg] = _Step(made.kind, made.previous, found.link.hash)

        await run_concurrently(partial(fetch, Txg(number)) for number in numbers)

    async def _read(self, link: Link, end: Txg, *, past: bool) -> Link:
        """Read changelogs after *link* to *end*; return the last readable link; record faults."""
        for start in range(link.txg + 1, end + 1, FETCHES_MAX):
            self._progress("changelogs", start - link.txg, end - link.txg)
            found: dict[Txg, FetchedChangelog | None] = {}
            numbers = range(start, min(start + FETCHES_MAX, end + 1))
            await run_concurrently(partial(self._fetch, Txg(one), found, past) for one in numbers)
            for txg in sorted(found):
                fetched = found[txg]
                if fetched is None:
                    continue
                follows = link.txg + 1 == txg and link.hash
                if follows and fetched.changelog.previous != link.hash:
                    why = f"it does not record the hash of changelog {link.txg}"
                    if past:
                        self._past[txg] = why
                    else:
                        self._fault(changelog_codec.key_of(txg), why, past=False)
                link = fetched.link
        return link

    async def _fetch(self, txg: Txg, found: dict[Txg, FetchedChangelog | None], past: bool) -> None:
        found[txg] = None
        try:
            fetched = await chain.fetch(self._store, self._keyring, self._uuid, txg)
            for part in fetched.changelog.parts:
                await self._require_part(part)
            found[txg] = fetched
        except (FormatError, ObjectMissingError) as exc:
            if past:
                self._past[txg] = str(exc)
            else:
                self._fault(changelog_codec.key_of(txg), str(exc), past=False)

    async def _require_part(self, part: PartRef) -> None:
        """Raise ObjectMissingError or FormatError if a part of a changelog is missing or damaged."""
        if self._deep:
            data = (await self._store.get(part.key, changelog_codec.PART_ENCODED_BYTES_MAX)).data
            await in_thread(changelog_codec.decode_part, part, data, self._keyring)
        else:
            await self._context.require(part.key)

    def _fault(self, key: ObjectKey, why: str, *, past: bool) -> None:
        self._exam.evidence.note_chain_faults([(key, int(past), why)])
