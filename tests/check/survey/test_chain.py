"""Tests of the survey of the chain of changelogs, from the base image to the last changelog."""

from collections import Counter

import pytest
from typing_extensions import override

from s3fs_meta.check.report import Mode
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Ino, ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain.abandoned_txgs import Mend
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.upload.bounds import UploadBounds
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import Fault, FaultyStore
from tests.check.survey.checking import EarlyListing, checked
from tests.damage import flipped
from tests.sync.conftest import TAKEOVER, Power, flushed, read_file, write_file

pytestmark = pytest.mark.thorough


def put(session: Session, content: bytes) -> Ino:
    """Create a file; its name is its inode number."""
    ino = write_file(session, content)
    dentries.add(session.db, ROOT_INO, b"%d" % ino, ino)
    inodes.change_directory(session.db, ROOT_INO, 0, entries=1)
    return ino


class _WithoutOne(FaultyStore):
    """A store that fails every request for one object."""

    def __init__(self, inner: ObjectStore, key: ObjectKey) -> None:
        super().__init__(inner)
        self._key = key

    @override
    async def enter(self, method: str, key: str) -> Fault | None:
        if key == self._key:
            raise StoreUnavailableError(key, 8, 60.0, "no route to host")
        return await super().enter(method, key)


async def _some_txgs(session: Session) -> list[Txg]:
    """Ship three txgs, make an image, and ship three more txgs; return all six txg numbers."""
    numbers = []
    for number in range(6):
        put(session, b"%d" % number * 1000)
        link = await flushed(session)
        numbers.append(link.txg)
        if number == 2:
            await session.make_image()
    return numbers


def _damage(power: Power, txg: Txg) -> None:
    key = key_of(txg)
    power.store.objects[key] = flipped(power.store.objects[key], -1)


async def test_fsck_finds_no_problem_in_an_intact_chain_of_changelogs(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        await _some_txgs(session)
        assert (await checked(session)).lines() == ["clean"]
        assert (await checked(session, deep=True)).lines() == ["clean"]


async def test_fsck_requests_a_new_image_if_a_changelog_after_the_last_image_is_unusable(
    power: Power,
) -> None:
    """The changelog is missing, damaged, or replaced by another changelog.

    Without this changelog, no other host could restore the current state.

    Invariant I67.
    """
    for harm in ("missing", "damaged", "another"):
        async with power.session("a", tasks=False, options=TAKEOVER) as session:
            numbers = await _some_txgs(session)
            ino = put(session, b"kept")
            await session.flush()
            if harm == "missing":
                del power.store.objects[key_of(numbers[4])]
            elif harm == "damaged":
                _damage(power, numbers[4])
            else:
                objects = power.store.objects
                objects[key_of(numbers[4])] = objects[key_of(numbers[3])]
            report = await checked(session)
            assert "I67" in report.broken
            assert report.exit_status == 4

            report = await checked(session, Mode.SAFE)
            assert report.exit_status == 1
            await session.publish_as_txg()
            assert "I67" not in (await checked(session)).broken
        async with power.session(f"b{harm}", options=TAKEOVER) as session:
            assert await read_file(session, ino) == b"kept"
        async with power.session("a", options=TAKEOVER) as session:
            await session.make_image()


async def test_fsck_only_reports_a_gap_in_changelogs_before_the_last_image(power: Power) -> None:
    """fsck reports points in time that were lost, but its exit status stays 0.

    Invariant I68.
    """
    async with power.session("a", tasks=False) as session:
        numbers = await _some_txgs(session)
        del power.store.objects[key_of(numbers[1])]
        report = await checked(session)
        assert (report.broken, report.exit_status) == (["I68"], 0)
        assert key_of(numbers[1]) in report.verdicts[0].examples[0].what


async def test_survey_reads_each_later_changelog_once_if_many_changelogs_are_missing(
    power: Power,
) -> None:
    """For each missing changelog, the survey examines up to a thousand later changelogs."""
    numbers = []
    async with power.session("a", tasks=False) as session:
        for number in range(12):
            put(session, b"%d" % number)
            numbers.append((await flushed(session)).txg)
        await session.make_image()
        for txg in numbers[:10:2]:
            del power.store.objects[key_of(txg)]
        store = FaultyStore(power.store)
        report = await checked(session, store=store)

    reads = Counter(call.key for call in store.calls if call.method == "get")
    assert report.broken == ["I68"]
    assert {reads[key_of(txg)] for txg in numbers[1:10:2]} == {1}


@pytest.mark.parametrize("index", [1, 4], ids=["before the image", "after the image"])
async def test_deep_check_fails_if_the_store_fails_to_return_a_changelog(
    power: Power, index: int
) -> None:
    async with power.session("a", tasks=False) as session:
        store = _WithoutOne(power.store, key_of((await _some_txgs(session))[index]))
        with pytest.raises(StoreUnavailableError, match="no route to host"):
            await checked(session, deep=True, store=store)


async def test_deep_check_finds_a_damaged_changelog_before_the_last_image(power: Power) -> None:
    """Only fsck --deep reads changelogs from before the last image."""
    async with power.session("a", tasks=False) as session:
        numbers = await _some_txgs(session)
        _damage(power, numbers[2])
        assert (await checked(session)).lines() == ["clean"]
        assert (await checked(session, deep=True)).broken == ["I68"]


async def test_missing_part_of_a_changelog_is_reported(power: Power) -> None:
    """A changelog with a missing part is unreadable."""
    async with power.session("a", tasks=False, bounds=UploadBounds(run_bytes=500)) as session:
        for number in range(4):
            put(session, b"%d" % number)
            session.db.commit()
        await session.flush()
        part = min(key for key in power.store.objects if key.startswith("changelog-part/"))
        assert (await checked(session)).lines() == ["clean"]
        data = power.store.objects.pop(ObjectKey(part))
        assert "I67" in (await checked(session)).broken
        power.store.objects[ObjectKey(part)] = flipped(data, -1)
        assert "I67" in (await checked(session, deep=True)).broken


async def test_part_that_was_stored_during_the_listing_is_not_reported(power: Power) -> None:
    """fsck lists parts before changelogs, and meanwhile a mount may store a changelog in parts."""
    async with power.session("a", tasks=False, bounds=UploadBounds(run_bytes=500)) as session:
        store = EarlyListing(power.store, "changelog-part/")
        for number in range(4):
            put(session, b"%d" % number)
            session.db.commit()
        await session.flush()
        assert any(key.startswith("changelog-part/") for key in power.store.objects)

        assert (await checked(session, store=store)).lines() == ["clean"]


@pytest.mark.parametrize("lost", ["damaged", "missing"])
@pytest.mark.parametrize("deep", [False, True])
async def test_repaired_chain_of_changelogs_is_intact(power: Power, lost: str, deep: bool) -> None:
    """fsck does not report abandoned txgs, which a repair has replaced, as lost."""
    async with power.session("a", tasks=False) as session:
        numbers = await _some_txgs(session)
        await session.close()
    for txg in numbers[4:5]:  # The changelog after the lost changelog is readable.
        if lost == "missing":
            del power.store.objects[key_of(txg)]
        else:
            _damage(power, txg)
    options = OpenOptions(mend=Mend(Txg(numbers[4] - 1)))
    async with power.session("b", options=options, tasks=False) as session:
        await session.publish_as_txg()
        report = await checked(session, deep=deep)
        assert (report.lines(), report.exit_status) == (["clean"], 0)
        reported = [note for note in report.notes if "cannot be restored" in note]
        assert len(reported) == (1 if deep or lost == "missing" else 0)
        assert all(f"from txg {numbers[4]} to" in note for note in reported)
        for _ in range(2):
            put(session, b"later")
            await session.flush()
            await session.make_image()
        _damage(power, Txg(numbers[0]))
        assert (await checked(session, deep=True)).broken == ["I68"]
