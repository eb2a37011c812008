"""Level objects in the bucket: listing, reading, verifying and creating them.

Owns: the choice of the level object that a replay applies next; merging consecutive changelogs and
level objects into one level object. Does not know: database rows; when a level object is created.
Keeps: a replay applies a level object only if the object starts right after the last applied txg
and its last changelog is in the chain. Level objects are optional: if a level object is unusable,
the replay applies its changelogs instead.
Design: docs/design/durability.md, "Levels".
"""

import itertools
import logging
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from s3fs_meta.background_task import in_thread
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import level as level_codec
from s3fs_meta.codec.changelog import Kind, Location, PackNote, Section, section_bytes
from s3fs_meta.codec.envelope import ENCODED_BYTES_MAX
from s3fs_meta.codec.image import TXG_DIGITS
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.level import Level
from s3fs_meta.errors import FormatError, NewerFormatError, ObjectMissingError
from s3fs_meta.limits import (
    CHANGELOG_LOCATIONS_MAX,
    CHANGELOG_PACKS_MAX,
    LEVEL_FAN_OUT,
    LEVEL_SECTION_BYTES_MAX,
    LEVELS_MAX,
    TXG_GAPS_MAX,
)
from s3fs_meta.meta import changesets
from s3fs_meta.meta.db.schema import SCHEMA_VERSION
from s3fs_meta.model import BlockId, Epoch, ObjectKey, PackId, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain, names
from s3fs_meta.sync.chain.chain import FetchedChangelog, Link

_log = logging.getLogger(__name__)

Ends = dict[Txg, dict[Txg, ObjectKey]]
"""The keys of level objects, by their first txg and then by their last txg."""


class NotMergedError(Exception):
    """Changelogs or level objects cannot be merged, for example because they are too large."""


class MergeInput(NamedTuple):
    """The content of a changelog or level object, as input to a merge."""

    first: Txg
    link: Link  # position of the last txg in the chain
    first_ns: int
    previous: str
    epoch: Epoch
    schema_version: int
    packs: tuple[PackNote, ...]
    forgotten: tuple[PackId, ...]
    section: Section


# --- read level objects ------------------------------------------------------------------------


async def ends_by_first(
    store: ObjectStore, keyring: Keyring, after: Txg, upto: Txg | None = None
) -> Ends:
    """Return the level objects that start after a txg.

    Keys with a txg that the chain cannot have reached are ignored: see ``names.reached``.

    Args:
        after: level objects that start at this txg or earlier are ignored.
        upto: level objects that end after this txg are ignored; None: no limit.
    """
    found: dict[ObjectKey, tuple[int, Txg]] = {}
    for level in range(1, LEVELS_MAX + 1):
        prefix = level_codec.prefix_of(level)
        # This string sorts after the keys of all level objects whose first txg is *after*.
        start = f"{prefix}{after:0{TXG_DIGITS}d}-~"
        async with aclosing(store.list(prefix, after=start)) as listing:
            async for info in listing:
                name = level_codec.parse_key(info.key)
                if name is None or level_codec.first_of(*name) <= after:
                    continue
                if upto is not None and name[1] > upto:
                    break  # keys are listed in txg order, so all later objects also end too late
                found[info.key] = name
    last = await names.reached(
        store, keyring, after, [(name[1], key) for key, name in found.items()]
    )
    ends: Ends = {}
    for key, name in found.items():
        if name[1] <= last:
            ends.setdefault(level_codec.first_of(*name), {})[name[1]] = key
    return ends


async def spanning(store: ObjectStore, txg: Txg, upto: Txg | None) -> Txg | None:
    """Return the first txg of the level object that covers a txg and starts earliest, or None.

    Args:
        upto: level objects that end after this txg are ignored; None: no limit.
    """
    earliest: Txg | None = None
    for level in range(1, LEVELS_MAX + 1):
        step = LEVEL_FAN_OUT**level
        last = Txg(-(-txg // step) * step)
        if upto is not None and last > upto:
            break
        key = level_codec.key_of(level, last)
        async with aclosing(store.list(key)) as listing:
            if any([info.key == key async for info in listing]):
                earliest = level_codec.first_of(level, last)
    return earliest


async def last_after(store: ObjectStore, keyring: Keyring, txg: Txg) -> Txg:
    """Return the latest txg at which an authentic level object ends, or *txg* if *txg* is later.

    The returned txg was in the chain, even if its changelog is lost. Only level 1 is listed,
    because higher levels are merged from level 1.
    """
    # First txg of the level 1 object that would contain the txg after *txg*.
    first = txg // LEVEL_FAN_OUT * LEVEL_FAN_OUT + 1
    found, prefix = [], level_codec.prefix_of(1)
    async with aclosing(store.list(prefix, after=f"{prefix}{first:0{TXG_DIGITS}d}")) as listing:
        async for info in listing:
            name = level_codec.parse_key(info.key)
            if name is not None:
                found.append((name[1], info.key))
    last = await names.reached(store, keyring, txg, found)
    return await last_authentic(store, keyring, txg, [name for name in found if name[0] <= last])


async def last_authentic(
    store: ObjectStore, keyring: Keyring, txg: Txg, levels: Iterable[names.Name]
) -> Txg:
    """Return the last txg of the latest authentic object of *levels*, or *txg* if *txg* is later.

    A level object beyond the last changelog shows that changelogs are lost. Any user of the bucket
    can create an object with such a key, so the function checks that this filesystem wrote the
    object. It reads at most TXG_GAPS_MAX objects, and none if no level object ends after *txg*.
    """
    later = sorted({name for name in levels if name[0] > txg}, reverse=True)
    for last, key in later[:TXG_GAPS_MAX]:
        try:
            await names.require_authentic(store, keyring, key)
        except (FormatError, ObjectMissingError) as exc:
            _log.warning("%s is not a level object of this filesystem: %s", key, exc)
            continue
        return last
    return txg


def longest(ends: Ends, link: Link, upto: Txg) -> names.Name | None:
    """Return the longest level object from a chain position up to *upto*, or None."""
    return max(
        (name for name in ends.get(link.next_txg, {}).items() if name[0] <= upto), default=None
    )


async def fetch(
    store: ObjectStore, keyring: Keyring, uuid: str, key: ObjectKey, before: Link
) -> Level:
    """Return the level object *key*, which must start right after the chain position *before*.

    Raises:
        ObjectMissingError: the level object does not exist.
        FormatError: the level object is damaged, or does not contain the hash of its predecessor.
    """
    data = (await store.get(key, ENCODED_BYTES_MAX)).data
    level = await in_thread(level_codec.decode, key, data, keyring)
    if level.uuid != uuid:
        raise FormatError(key, "the level object belongs to another filesystem")
    if level.previous != before.hash or level.floor < before.floor:
        raise FormatError(
            key, f"the level object does not match changelog {before.txg}, which precedes it"
        )
    return level


async def require_end(store: ObjectStore, keyring: Keyring, uuid: str, level: Level) -> None:
    """Raise FormatError if the last changelog of a level object is not in the chain.

    The check reads the changelog of the level object's last txg. If that changelog is unreadable,
    the check reads the next changelog. If both are unreadable, the level object is accepted.

    Raises:
        FormatError: the level object belongs to another chain of this filesystem.
    """
    try:
        own = await chain.fetch(store, keyring, uuid, level.last)
    except (FormatError, ObjectMissingError):
        pass
    else:
        if own.link.hash != level.hash:
            raise FormatError(
                level.key, f"the level object does not match its last changelog, {level.last}"
            )
        return
    try:
        after = await chain.fetch(store, keyring, uuid, Txg(level.last + 1))
    except (FormatError, ObjectMissingError):
        return  # both changelogs are unreadable, so there is no hash to compare
    if after.changelog.kind is not Kind.FENCE and after.changelog.previous != level.hash:
        why = f"changelog {level.last + 1} contains a different hash than the level object"
        raise FormatError(level.key, why)


async def link_of_end(store: ObjectStore, keyring: Keyring, uuid: str, txg: Txg) -> Link | None:
    """Return the chain position of a txg, read from a level object that ends at this txg.

    Returns:
        None if no such level object is usable.

    Raises:
        NewerFormatError: a newer version of the program wrote a level object that ends at the txg.
    """
    for number in level_codec.ends_at(txg):
        key = level_codec.key_of(number, txg)
        try:
            data = (await store.get(key, ENCODED_BYTES_MAX)).data
            level = await in_thread(level_codec.decode, key, data, keyring)
            if level.uuid == uuid:
                await require_end(store, keyring, uuid, level)
                return link_of(level)
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError):
            continue
    return None


def link_of(level: Level) -> Link:
    """Return the chain position of a level object's last txg."""
    return Link(level.last, level.hash, level.created_ns, level.floor)


# --- merge changelogs and level objects --------------------------------------------------------


def piece_of_level(level: Level) -> MergeInput:
    """Convert a level object to an input of ``merge``."""
    return MergeInput(
        level.first,
        link_of(level),
        level.first_ns,
        level.previous,
        level.epoch,
        level.schema_version,
        level.packs,
        level.forgotten,
        level.section,
    )


def piece_of_changelog(fetched: FetchedChangelog) -> MergeInput:
    """Convert a changelog to an input for ``merge``.

    Raises:
        NotMergedError: the changelog is of kind IMAGE, or has separate parts.
    """
    changelog = fetched.changelog
    if changelog.kind is Kind.IMAGE:
        raise NotMergedError(f"changelog {changelog.txg} refers to an image, so it is not merged")
    if changelog.parts:
        raise NotMergedError(f"changelog {changelog.txg} has separate parts, so it is not merged")
    return MergeInput(
        changelog.txg,
        fetched.link,
        changelog.created_ns,
        changelog.previous,
        changelog.epoch,
        changelog.schema_version,
        changelog.packs,
        changelog.forgotten,
        changelog.section,
    )


def size_of(section: Section) -> int:
    """Return the encoded length of a section in bytes."""
    return section_bytes(len(section.locations), len(section.changeset))


def merge(
    level: int,
    uuid: str,
    pieces: Sequence[MergeInput],
    *,
    section_bytes_max: int = LEVEL_SECTION_BYTES_MAX,
) -> Level:
    """Merge consecutive pieces into one level object. The call blocks.

    Args:
        level: the level of the object.
        uuid: the UUID of the filesystem.
        pieces: changelogs, or level objects of the level below.
        section_bytes_max: the maximum size of the changes in one object.

    Raises:
        NotMergedError: the level object would be too large, or a piece has a newer version.
        FormatError: a piece is damaged, or does not contain the hash of the piece before it.
    """
    for one, other in itertools.pairwise(pieces):
        if other.previous != one.link.hash or other.first != one.link.next_txg:
            key = changelog_codec.key_of(other.first)
            raise FormatError(key, f"the object does not directly follow changelog {one.link.txg}")
    if max(piece.schema_version for piece in pieces) > SCHEMA_VERSION:
        raise NotMergedError(
            "a changelog to merge has a schema version that this program does not know"
        )
    last = pieces[-1].link
    made = Level(
        level=level,
        last=last.txg,
        epoch=max(piece.epoch for piece in pieces),
        uuid=uuid,
        schema_version=SCHEMA_VERSION,  # the merge converts changes of older schema versions
        first_ns=pieces[0].first_ns,
        created_ns=last.created_ns,
        previous=pieces[0].previous,
        hash=last.hash,
        floor=last.floor,
        packs=_packs(pieces),
        forgotten=_forgotten(pieces),
        section=_section([piece.section for piece in pieces]),
    )
    if max(len(made.packs), len(made.forgotten)) > CHANGELOG_PACKS_MAX:
        raise NotMergedError("the merged level object would list too many packs")
    if (
        size_of(made.section) > section_bytes_max
        or len(made.section.locations) > CHANGELOG_LOCATIONS_MAX
    ):
        raise NotMergedError("the merged level object would contain too many changes")
    return made


def _section(sections: Sequence[Section]) -> Section:
    """Return the net effect of several sections; omit blocks that were created and then removed."""
    changeset = changesets.merge(one.changeset for one in sections if one.changeset)
    places: dict[BlockId, Location] = {}
    for one in sections:
        places.update({location.block: location for location in one.locations})
    new = changesets.first_new_block(changeset)
    if new is not None:
        alive = changesets.named_blocks(changeset)
        places = {block: place for block, place in places.items() if block < new or block in alive}
    return Section(changeset, tuple(places.values()))


def _packs(pieces: Sequence[MergeInput]) -> tuple[PackNote, ...]:
    """Return the last recorded state of each pack, except packs that a piece reports as deleted."""
    notes = {note.pack: note for piece in pieces for note in piece.packs}
    forgotten_packs = set(_forgotten(pieces))
    return tuple(note for pack, note in notes.items() if pack not in forgotten_packs)


def _forgotten(pieces: Sequence[MergeInput]) -> tuple[PackId, ...]:
    return tuple(dict.fromkeys(pack for piece in pieces for pack in piece.forgotten))
