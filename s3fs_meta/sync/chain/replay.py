"""Replay: applying changelogs and level objects to a database, in the order of the chain.

Owns: the steps for one txg after another (fetch, verify, apply, record the position); the errors
for a changelog that is missing or damaged, or does not fit the database.
Does not know: rows (``meta.replica``), why the database needs later txgs.
Tasks: one task per database; no other task uses the database during a replay.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NamedTuple

import trio

from s3fs_meta.background_task import in_thread, in_thread_or_here
from s3fs_meta.bucket_errors import BrokenChainError
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.changelog import Section
from s3fs_meta.codec.image import ManifestRef
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.level import Level
from s3fs_meta.errors import FormatError, NewerFormatError, ObjectMissingError
from s3fs_meta.limits import CLEANUP_S_MAX, LEVEL_FAN_OUT, LEVEL_FAULTS_MAX, TXG_GAPS_MAX
from s3fs_meta.meta.db import schema
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.replica import Replica
from s3fs_meta.model import BlockId, ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import levels
from s3fs_meta.sync.chain.chain import (
    FetchedChangelog,
    Link,
    encode_link,
    fetch,
    fetch_next,
    numbers_after,
    numbers_from,
    require_known,
)
from s3fs_meta.sync.progress import Progress

_log = logging.getLogger(__name__)


class NeedsImageError(Exception):
    """The next txg is an image, so no changelog contains its changes."""

    def __init__(self, image: ManifestRef) -> None:
        super().__init__(f"the next txg is the image {image.key}")
        self.image = image


class MisfitError(FormatError):
    """A changelog or level object is intact, but its changes contradict the database's rows."""


class Replayer:
    """Applies changelogs and level objects to one database."""

    def __init__(
        self,
        store: ObjectStore,
        keyring: Keyring,
        uuid: str,
        db: Database,
        *,
        heard: Callable[[bytes], None] | None = None,
    ) -> None:
        """Create the replayer of one database.

        Args:
            heard: called in a thread with every changeset, before it is applied.
        """
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        self._replica = Replica(db)
        self._heard = heard
        self.last_level: ObjectKey | None = None  # newest level object whose changes were applied
        self.notices: list[str] = []  # notices to show to the user, one line each
        self._unusable = 0  # number of level objects that could not be used

    async def forward(
        self,
        link: Link,
        progress: Progress,
        upto: Txg | None = None,
        *,
        by_levels: bool = True,
    ) -> Link:
        """Apply the changelogs after a chain position; return the position that was reached.

        Args:
            link: the chain position of the state in the database.
            upto: the last txg to apply; None: apply all txgs in the bucket.
            by_levels: apply level objects instead of the changelogs that were merged into them.

        Raises:
            NeedsImageError: the next txg is an image; the database has the state before that txg.
            BrokenChainError: a changelog is missing or damaged, or does not fit the rows; the
                database has the state before that txg.
            FormatError: a level object does not fit the rows.
        """
        plan = await self._plan(link, upto, by_levels=by_levels)
        start = link.txg
        while link.txg < plan.end:
            progress("changes", link.txg - start, plan.end - start)
            level = await self._level(plan, link)
            if level is not None:
                link = await self._apply_level(level)
                continue
            link = await self._step(link, plan.end)
        progress("changes", link.txg - start, link.txg - start)
        return link

    async def _step(self, link: Link, end: Txg) -> Link:
        """Apply the changelog that directly follows a chain position; return its position."""
        try:
            fetched = await fetch_next(self._store, self._keyring, self._uuid, link)
            await self.apply(fetched)
        except NewerFormatError:
            raise
        except ObjectMissingError as exc:
            raise BrokenChainError(exc.key, "the changelog is missing", link.txg, end) from exc
        except FormatError as exc:
            misfit = isinstance(exc, MisfitError)
            raise BrokenChainError(exc.key, exc.what, link.txg, end, misfit=misfit) from exc
        return fetched.link

    async def _plan(self, link: Link, upto: Txg | None, *, by_levels: bool) -> "_Plan":
        """Return the last txg to apply and the usable level objects, avoiding long listings."""
        if upto is not None and upto <= link.txg:
            return _Plan(link.txg, {})
        if upto is not None and await self._exists(upto):
            return await self._plan_to(link, upto, by_levels=by_levels)
        few = LEVEL_FAN_OUT if by_levels else None
        numbers = await numbers_after(self._store, self._keyring, link.txg, few)
        ends: levels.Ends = {}
        if len(numbers) == few or (by_levels and not _are_without_gap(numbers, link)):
            ends = await levels.ends_by_first(self._store, self._keyring, link.txg)
            numbers += await self._after_levels(link, ends)
        else:
            last = max(numbers, default=link.txg)
            numbers.append(await levels.last_after(self._store, self._keyring, last))
        end = max(numbers, default=link.txg)
        return _Plan(end if upto is None else min(end, upto), ends)

    async def _exists(self, txg: Txg) -> bool:
        """Return whether the bucket has a readable changelog for a txg."""
        try:
            await fetch(self._store, self._keyring, self._uuid, txg)
        except (ObjectMissingError, FormatError):
            return False
        return True

    async def _plan_to(self, link: Link, upto: Txg, *, by_levels: bool) -> "_Plan":
        """Return the usable level objects up to an existing txg, without listing any later ones."""
        count = upto - link.txg
        if not by_levels:
            return _Plan(upto, {})
        if count < LEVEL_FAN_OUT:
            numbers = await numbers_after(self._store, self._keyring, link.txg, count)
            if len(numbers) == count and _are_without_gap(numbers, link):
                return _Plan(upto, {})
        ends = await levels.ends_by_first(self._store, self._keyring, link.txg, upto)
        return _Plan(upto, ends)

    async def _after_levels(self, link: Link, ends: levels.Ends) -> list[Txg]:
        """Return the last txg that a level object covers, and the txgs of all later changelogs."""
        named = [name for some in ends.values() for name in some.items()]
        for last in sorted({name[0] for name in named}, reverse=True)[:TXG_GAPS_MAX]:
            later = await numbers_from(self._store, self._keyring, last)
            if later:
                return later
            of_last = [name for name in named if name[0] == last]
            if await levels.last_authentic(self._store, self._keyring, link.txg, of_last) == last:
                return [last]
        return await numbers_after(self._store, self._keyring, link.txg)

    async def _level(self, plan: "_Plan", link: Link) -> Level | None:
        """Return the longest valid level object right after a chain position, or None."""
        while (name := levels.longest(plan.ends, link, plan.end)) is not None:
            last, key = name
            try:
                level = await levels.fetch(self._store, self._keyring, self._uuid, key, link)
                if level.last == plan.end:
                    await levels.require_end(self._store, self._keyring, self._uuid, level)
            except (FormatError, ObjectMissingError) as exc:
                self._note_unusable(key, exc)
                del plan.ends[link.next_txg][last]
            else:
                return level
        return None

    def _note_unusable(self, key: ObjectKey, exc: FormatError | ObjectMissingError) -> None:
        self._unusable += 1
        if self._unusable <= LEVEL_FAULTS_MAX:
            self.notices.append(f"changelogs are used instead of the level object {key}: {exc}")
            _log.warning("using changelogs instead of the level object %s: %s", key, exc)
        elif self._unusable == LEVEL_FAULTS_MAX + 1:
            self.notices.append(
                "changelogs are used instead of more level objects, not listed here"
            )

    async def _apply_level(self, level: Level) -> Link:
        link = levels.link_of(level)
        self.last_level = level.key
        if level.schema_version > schema.SCHEMA_VERSION:
            raise NewerFormatError(
                level.key, f"the schema version {level.schema_version} is unknown"
            )
        async with self._applying():
            await in_thread(self._add, level.section, level.key)
            await in_thread(self._finish_level, level, link)
        return link

    @contextlib.asynccontextmanager
    async def _applying(self) -> AsyncIterator[None]:
        """Begin to apply a txg; undo its changes if the with-block raises an exception."""
        await in_thread(self._replica.begin)
        try:
            yield
        except BaseException:
            with trio.move_on_after(CLEANUP_S_MAX, shield=True):
                await in_thread_or_here(self._replica.abandon)
            raise

    def _finish_level(self, level: Level, link: Link) -> None:
        self._replica.finish(
            link.txg, level.packs, level.forgotten, encode_link(link), level.key, merged=True
        )

    async def apply(self, fetched: FetchedChangelog) -> list[BlockId]:
        """Apply the next changelog to the database; return the blocks that it removed.

        Raises:
            NeedsImageError: the changelog is an image; nothing was applied.
            FormatError: the changelog is damaged or does not fit the rows; nothing was applied.
        """
        changelog, link = fetched.changelog, fetched.link
        key = changelog_codec.key_of(link.txg)
        require_known(changelog)
        if changelog.image is not None:
            raise NeedsImageError(changelog.image)
        async with self._applying():
            for part in changelog.parts:
                part_bytes = changelog_codec.PART_ENCODED_BYTES_MAX
                data = (await self._store.get(part.key, part_bytes)).data
                section = await in_thread(changelog_codec.decode_part, part, data, self._keyring)
                await in_thread(self._add, section, part.key)
            await in_thread(self._add, changelog.section, key)
            with _fitting():
                return await in_thread(
                    self._replica.finish,
                    link.txg,
                    changelog.packs,
                    changelog.forgotten,
                    encode_link(link),
                    key,
                )

    def _add(self, section: Section, where: str) -> None:
        if self._heard is not None and section.changeset:
            self._heard(section.changeset)
        with _fitting():
            self._replica.add(section.changeset, section.locations, where)


@contextlib.contextmanager
def _fitting() -> Iterator[None]:
    """Convert a FormatError raised in the with-block to a MisfitError."""
    try:
        yield
    except FormatError as exc:
        raise MisfitError(exc.key, exc.what) from exc


def _are_without_gap(numbers: Sequence[Txg], link: Link) -> bool:
    return all(txg == number for number, txg in enumerate(numbers, link.next_txg))


class _Plan(NamedTuple):
    """The last txg of a replay, and the level objects that it can apply instead of changelogs."""

    end: Txg
    ends: levels.Ends
