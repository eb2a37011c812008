"""Level objects (merged changelogs): they make a restore faster, but do not change its result."""

import gc
import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from s3fs_meta.bucket_errors import BrokenChainError
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import level as level_codec
from s3fs_meta.codec.changelog import NO_CHANGES, Section
from s3fs_meta.codec.image import NO_HASH, Manifest, content_hash
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError
from s3fs_meta.limits import LEVEL_FAN_OUT, LEVEL_FAULTS_MAX, LEVELS_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.db.schema import SCHEMA_VERSION
from s3fs_meta.meta.replica import Replica
from s3fs_meta.meta.tables import packs
from s3fs_meta.model import Epoch, Ino, ObjectKey, PackState, Txg
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.chain import chain, levels
from s3fs_meta.sync.chain.chain import FetchedChangelog, Link
from s3fs_meta.sync.chain.levels import MergeInput, NotMergedError
from s3fs_meta.sync.image.restore import Restorer
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.damage import flipped
from tests.meta.conftest import PROPERTIES
from tests.meta.pairs import Pair, lost
from tests.meta.random_tree import Tree
from tests.rows import contents_at, require_equal
from tests.sync.chain.empty_changelogs import append_empty_changelogs
from tests.sync.conftest import Power, keys_of, remove_file, write_file
from tests.sync.image.restoring import restorer_of

pytestmark = pytest.mark.thorough

RUN = LEVEL_FAN_OUT
RUN_OF_RUNS = RUN * RUN
PLAIN = Keyring(None, bytes(32))
UUID = "01234567-89ab-cdef-0123-456789abcdef"


# --- rows after merged changelogs --------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Yield a database that records its changes, and a replica of it."""
    db = Database.create(tmp_path / "meta.db", Pragmas(), PROPERTIES)
    yield Pair(db, tmp_path)
    db.close()


@pytest.mark.parametrize("seed", range(6))
def test_merged_changelogs_give_the_same_rows_as_single_changelogs(
    pair: Pair, tmp_path: Path, seed: int
) -> None:
    """After random changes, merged and single changelogs produce the same rows."""
    tree = Tree(pair.db, seed)
    (tmp_path / "other.db").write_bytes((tmp_path / "copy.db").read_bytes())
    other = Database.open(tmp_path / "other.db", Pragmas())
    pieces: list[MergeInput] = []
    before = NO_HASH
    for txg in range(1, RUN_OF_RUNS + 1):
        for _ in range(tree.rnd.randrange(8)):
            tree.step()
        pair.db.commit()
        there = pair.db.all("SELECT DISTINCT block, 1 FROM block_map")
        section = Section(pair.changeset(), tuple(lost(*row) for row in there))
        pair.replica.begin()
        pair.replica.add(*section, "single")
        pair.replica.finish(Txg(txg), (), (), "", "single")
        link = Link(Txg(txg), content_hash(b"%d" % txg), txg + 1)
        pieces.append(MergeInput(Txg(txg), link, txg + 1, before, Epoch(1), 1, (), (), section))
        before = link.hash
    ones = [levels.merge(1, UUID, pieces[at : at + RUN]) for at in range(0, RUN_OF_RUNS, RUN)]
    merged = levels.merge(2, UUID, [levels.piece_of_level(one) for one in ones])
    replica = Replica(other)
    replica.begin()
    replica.add(*merged.section, "merged")
    replica.finish(Txg(RUN_OF_RUNS), merged.packs, merged.forgotten, "", "merged", merged=True)
    other.close()
    pair.copy.close()

    require_equal(contents_at(tmp_path / "other.db"), contents_at(tmp_path / "copy.db"))
    assert len(merged.section.changeset) <= sum(len(one.section.changeset) for one in pieces)


# --- restores in sessions ----------------------------------------------------------------------


async def _work(session: Session, seed: int, txgs: int) -> None:
    """Write and remove files; condemn and delete packs that become unused."""
    rnd = random.Random(seed)
    files: list[Ino] = []
    for _ in range(txgs):
        sizes = [rnd.randrange(1, 3000) for _ in range(rnd.randrange(1, 4))]
        files.extend(write_file(session, rnd.randbytes(size)) for size in sizes)
        while files and rnd.random() < 0.6:
            remove_file(session, files.pop(rnd.randrange(len(files))))
        if rnd.random() < 0.3:
            await session.compactor.run_once()
        session.db.begin()
        dead = packs.find_dead(session.db, session.link.txg, 3)
        for row in (*packs.find_condemned(session.db, range(10_000)), *dead)[:3]:
            if row.state is PackState.STORED:
                packs.condemn(session.db, row.pack)
            else:
                packs.delete(session.db, row.pack)
        await session.shipper.ship(anyway=True)


@contextmanager
def without_levels(store: MemoryStore) -> Iterator[None]:
    """Hide all level objects of a store while the context is active."""
    kept = {key: data for key, data in store.objects.items() if key.startswith("level/")}
    for key in kept:
        del store.objects[key]
    yield
    store.objects.update(kept)


async def _restored(power: Power, session: Session, name: str) -> tuple[Path, Restorer]:
    path, restorer = power.home / name, await restorer_of(power)
    assert await restorer.restore(None, path) == session.link
    return path, restorer


async def _require_same_rows_without_levels(power: Power, session: Session, merged: Path) -> None:
    with without_levels(power.store):
        single, _ = await _restored(power, session, "single.db")
    require_equal(contents_at(merged), contents_at(single))


@pytest.mark.parametrize("seed", range(3))
async def test_restore_from_level_objects_equals_a_restore_from_changelogs(
    power: Power, seed: int
) -> None:
    """Level objects give the same restore result even for moved blocks and deleted packs."""
    async with power.session("a", tasks=False) as session:
        await _work(session, seed, (RUN + 1) * RUN + 3)
        await session.leveler.make_due()
        made = [key for key in power.store.objects if key.startswith("level/2/")]
        assert made
        merged, restorer = await _restored(power, session, "merged.db")
        assert restorer.notices == []
        await _require_same_rows_without_levels(power, session, merged)


@pytest.mark.parametrize("damage", ["flipped", "missing", "swapped"])
async def test_restore_uses_changelogs_instead_of_a_damaged_level_object(
    power: Power, damage: str
) -> None:
    """If a level object is damaged, a restore reports the damage and reads the changelogs."""
    async with power.session("a", tasks=False) as session:
        await _work(session, 1, (RUN + 1) * RUN)
        await session.leveler.make_due()
        objects = power.store.objects
        key = level_codec.key_of(1, Txg(2 * RUN))
        big = level_codec.key_of(2, Txg(RUN_OF_RUNS))
        if damage == "flipped":
            for each in (key, big):
                objects[each] = flipped(objects[each], -1)
        elif damage == "missing":
            del objects[key], objects[big]
        else:
            objects[key] = objects[level_codec.key_of(1, Txg(3 * RUN))]
            objects[big] = objects[key]
        path, restorer = await _restored(power, session, "restored.db")
        reported = [
            notice for notice in restorer.notices if "changelogs are used instead" in notice
        ]
        assert len(reported) == (0 if damage == "missing" else 2)
        await _require_same_rows_without_levels(power, session, path)


async def test_restore_reports_a_limited_number_of_damaged_level_objects(power: Power) -> None:
    """A week of txgs has thousands of level objects, whose notices would hide all others."""
    async with power.session("a", tasks=False) as session:
        await append_empty_changelogs(session, (LEVEL_FAULTS_MAX + 2) * RUN)
        await session.leveler.make_due()
        for key in keys_of(power, "level/"):
            power.store.objects[key] = b"damaged"
        _path, restorer = await _restored(power, session, "restored.db")

    assert len(restorer.notices) == LEVEL_FAULTS_MAX + 1
    assert "more level objects" in restorer.notices[-1]


async def test_restore_uses_changelogs_if_a_level_object_cannot_be_applied(power: Power) -> None:
    """If a level object cannot be applied, the restore begins again without level objects."""
    async with power.session("a", tasks=False) as session:
        await _work(session, 1, RUN)
        await session.leveler.make_due()
        key = level_codec.key_of(1, Txg(RUN))
        keyring = session.volume.keyring
        made = level_codec.decode(key, power.store.objects[key], keyring)
        second = await levels_of(power, session, 2)
        wrong = level_codec.Level(**{**vars(made), "section": second})
        power.store.objects[key] = level_codec.encode(wrong, keyring)

        path, restorer = await _restored(power, session, "restored.db")
        assert any("instead of the level object" in notice for notice in restorer.notices)
        await _require_same_rows_without_levels(power, session, path)


async def test_failed_restore_from_level_objects_frees_the_memory_of_its_manifest(
    power: Power,
) -> None:
    """A failed restore must free its manifest before the next attempt."""
    async with power.session("a", tasks=False) as session:
        await _work(session, 1, RUN)
        await session.leveler.make_due()
        await _work(session, 2, 2)
        del power.store.objects[changelog_codec.key_of(Txg(session.link.txg - 1))]
        await session.close()
    del session
    gc.collect()
    others = [one for one in gc.get_objects() if isinstance(one, Manifest)]
    restorer = await restorer_of(power)

    with pytest.raises(BrokenChainError) as refused:
        await restorer.restore(None, power.home / "restored.db")

    assert refused.value.__context__ is not None, "the restore also failed without levels"
    gc.collect()
    kept = [one for one in gc.get_objects() if isinstance(one, Manifest)]
    assert [one for one in kept if not any(one is other for other in others)] == []


@pytest.mark.parametrize("later", [0, 2])
async def test_restore_uses_changelogs_instead_of_level_objects_of_another_history(
    power: Power, later: int
) -> None:
    """A level object of another history is detected by the hashes of later changelogs."""
    async with power.session("a", tasks=False) as session:
        await _work(session, 1, RUN - 2)  # Txg 1 is the fence record.
        young = dict(power.store.objects)
        await _work(session, 2, 1 + later)
    here = dict(power.store.objects)
    power.store.objects = young
    options = OpenOptions(force_takeover=True)
    async with power.session("fork", tasks=False, options=options) as session:
        await _work(session, 3, RUN)
        await session.leveler.make_due()
    key = level_codec.key_of(1, Txg(RUN))
    power.store.objects = {**here, key: power.store.objects[key]}
    async with power.session("b", tasks=False, options=OpenOptions(read_only=True)) as session:
        path, restorer = await _restored(power, session, "restored.db")
        reported = [
            notice for notice in restorer.notices if "changelogs are used instead" in notice
        ]
        assert len(reported) == 1
        await _require_same_rows_without_levels(power, session, path)


async def levels_of(power: Power, session: Session, txg: int) -> Section:
    """Return the changes in a txg's changelog."""
    data = power.store.objects[changelog_codec.key_of(Txg(txg))]
    key = changelog_codec.key_of(Txg(txg))
    return changelog_codec.decode(key, data, session.volume.keyring).section


# --- objects that a restore reads --------------------------------------------------------------


def steps(start: int, end: int) -> int:
    """Return how many objects a restore between two txgs reads if all level objects exist."""
    count, longest = 0, RUN**LEVELS_MAX
    while start < end:
        run = 1
        while run < longest and start % (run * RUN) == 0 and start + run * RUN <= end:
            run *= RUN
        start += run
        count += 1
    return count


def test_restore_of_a_week_of_txgs_reads_at_most_60_objects() -> None:
    """A restore of a week with a txg every five seconds reads at most 60 objects.

    The worst case starts just after the start of one run of changelogs, and stops just before the
    end of another run.
    """
    week, fan = 7 * 86_400 // 5, RUN
    firsts = [number * fan**level + 1 for level in range(3, LEVELS_MAX) for number in range(fan)]
    ends = {
        (first + length) // fan**level * fan**level - 1
        for first in firsts
        for length in range(week // 2, week, fan**4)
        for level in range(LEVELS_MAX)
    }
    ways = [(first, end) for first in firsts for end in ends if 0 < end - first <= week]
    assert 50 < max(itertools.starmap(steps, ways)) <= 60
    assert max(steps(first, first + week) for first in range(0, fan**LEVELS_MAX, 89)) <= 60


async def _requests_of_a_restore(power: Power, session: Session) -> tuple[list[str], list[str]]:
    """Restore the newest txg; return the keys of the objects after the image, and the listings."""
    store = FaultyStore(power.store)
    restorer = await restorer_of(power, store)
    assert await restorer.restore(None, power.home / "x.db") == session.link
    read = [call.key for call in store.calls if call.method == "get"]
    listed = [call.key for call in store.calls if call.method == "list"]
    return [key for key in read if not key.startswith("image/")], listed


async def test_restore_reads_the_computed_number_of_objects(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        await append_empty_changelogs(session, 5**4 + 5**3 + 5 + 1)
        await session.leveler.make_due()
        read, listed = await _requests_of_a_restore(power, session)
        assert len(read) == steps(0, session.link.txg)
        assert len(listed) <= LEVELS_MAX + 4


@pytest.mark.slow
async def test_restore_of_thousands_of_txgs_reads_at_most_60_objects(power: Power) -> None:
    """The last txg is one before a multiple of 5**5: the restore reads four of each lower level."""
    async with power.session("a", tasks=False) as session:
        await append_empty_changelogs(session, 2 * 5**5 - 2)
        await session.leveler.make_due()
        read, _listed = await _requests_of_a_restore(power, session)
        assert len(read) <= 60


# --- changelogs that are not merged -------------------------------------------------------------


def _piece(txg: int, previous: str = NO_HASH, schema_version: int = 1) -> MergeInput:
    link = Link(Txg(txg), content_hash(b"%d" % txg), txg)
    return MergeInput(Txg(txg), link, txg, previous, Epoch(1), schema_version, (), (), NO_CHANGES)


async def test_level_object_of_another_chain_is_refused(power: Power) -> None:
    """The first changelog in a level object must follow the last changelog that was restored."""
    async with power.session("a", tasks=False) as session:
        opened, start = session.volume, session.link
        await append_empty_changelogs(session, 2 * RUN)
        await session.leveler.make_due()
        key, uuid = level_codec.key_of(1, Txg(2 * RUN)), opened.superblock.uuid
        before = (await chain.fetch(power.store, opened.keyring, uuid, Txg(RUN))).link
        assert (await levels.fetch(power.store, opened.keyring, uuid, key, before)).last == 2 * RUN
        for wrong in (before._replace(hash=start.hash), before._replace(floor=Txg(RUN))):
            with pytest.raises(FormatError, match="does not match changelog"):
                await levels.fetch(power.store, opened.keyring, uuid, key, wrong)


def test_changelogs_with_a_gap_are_not_merged() -> None:
    """Changelogs are merged only if each changelog contains the hash of its predecessor."""
    one = _piece(1)
    with pytest.raises(FormatError, match="does not directly follow changelog"):
        levels.merge(1, UUID, [one, _piece(2)])
    with pytest.raises(FormatError, match="does not directly follow changelog"):
        levels.merge(1, UUID, [one, _piece(3, one.link.hash)])


def test_changelogs_of_a_newer_schema_version_are_not_merged() -> None:
    one = _piece(1)
    with pytest.raises(NotMergedError):
        levels.merge(1, UUID, [one, _piece(2, one.link.hash, schema_version=SCHEMA_VERSION + 1)])
    both = [one, _piece(2, one.link.hash, schema_version=SCHEMA_VERSION)]
    assert levels.merge(1, UUID, both).schema_version == SCHEMA_VERSION


def test_changelogs_with_too_many_changes_are_not_merged() -> None:
    """A level object that would be too large is not made; a restore reads the changelogs."""
    one = _piece(1)
    pieces = [one, _piece(2, one.link.hash)]
    assert levels.merge(1, UUID, pieces).last == 2
    with pytest.raises(NotMergedError):
        levels.merge(1, UUID, pieces, section_bytes_max=3)


def test_changelog_that_has_parts_or_refers_to_an_image_is_not_merged() -> None:
    """A changelog of an image has no changes to merge; one with parts is too large to merge."""
    from tests.codec.changelogs import GROUP, IMAGE

    for changelog, why in ((GROUP, "has separate parts"), (IMAGE, "refers to an image")):
        with pytest.raises(NotMergedError, match=why):
            levels.piece_of_changelog(FetchedChangelog(changelog, Link(Txg(7), NO_HASH, 1), 1))


def test_restore_uses_the_longest_level_object_that_fits() -> None:
    """A level object is used if it starts after the current txg and ends by the target txg."""
    first, second, third = ObjectKey("level/1"), ObjectKey("level/2"), ObjectKey("level/3")
    ends = {
        Txg(26): {Txg(30): first, Txg(50): second},
        Txg(1): {Txg(5): first, Txg(25): second, Txg(125): third},
    }
    zero, mid = Link(Txg(0), NO_HASH, 0), Link(Txg(25), NO_HASH, 0)
    assert levels.longest(ends, zero, Txg(200)) == (Txg(125), third)
    assert levels.longest(ends, zero, Txg(124)) == (Txg(25), second)
    assert levels.longest(ends, mid, Txg(49)) == (Txg(30), first)
    assert levels.longest(ends, mid, Txg(29)) is None
    assert levels.longest(ends, Link(Txg(4), NO_HASH, 0), Txg(200)) is None
