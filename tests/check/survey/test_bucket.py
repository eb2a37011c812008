"""Tests of the survey of the bucket, which fsck makes before it checks rows."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from typing_extensions import override

from s3fs_meta.check.context import Examination, SurveyContext
from s3fs_meta.check.observations import Evidence, Need
from s3fs_meta.check.report import Report
from s3fs_meta.check.survey import bucket as bucket_survey
from s3fs_meta.check.survey import cache as cache_survey
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec.image import Piece
from s3fs_meta.errors import TransientStoreError
from s3fs_meta.limits import FSCK_EXAMPLES_MAX, IMAGE_PIECE_BYTES, IMAGE_PIECE_FAULTS_MAX
from s3fs_meta.meta.tables import packs
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import Fetched, ObjectInfo
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.session import Session
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.check.healthy import NOW_NS, Healthy
from tests.check.survey.checking import EarlyListing
from tests.packs import stray_pack
from tests.sync.conftest import Power, write_file

pytestmark = pytest.mark.thorough


@pytest.fixture
def exam(healthy: Healthy) -> Examination:
    """Return the state of an fsck run that has made no survey."""
    return Examination(healthy.db, Evidence(healthy.db), Report(), now_ns=NOW_NS, mounted=False)


async def test_survey_of_a_healthy_bucket_requests_only_one_listing_and_the_lease(
    healthy: Healthy, exam: Examination
) -> None:
    """The survey reads no pack if all rows of blocks are consistent."""
    store = FaultyStore(healthy.store)
    reported: list[tuple[str, int, int]] = []

    await bucket_survey.survey(
        SurveyContext(exam, store, healthy.keyring, lambda *step: reported.append(step))
    )

    assert [call.method for call in store.calls] == ["list", "get"]
    assert healthy.db.all("SELECT count(*) FROM temp.seen_objects") == [
        (len(healthy.store.objects),)
    ]
    assert Need.OBJECTS in exam.evidence.surveyed


async def test_survey_of_an_unreachable_store_reports_no_missing_object(
    healthy: Healthy, exam: Examination
) -> None:
    """If the store fails, the survey raises its error, and no object is reported as missing."""
    store = FaultyStore(healthy.store)
    store.down = TransientStoreError("key", "away")

    with pytest.raises(TransientStoreError):
        await bucket_survey.survey(SurveyContext(exam, store, healthy.keyring))

    assert Need.OBJECTS not in exam.evidence.surveyed


async def test_object_that_is_missing_from_a_listing_is_requested(
    healthy: Healthy, exam: Examination
) -> None:
    """The survey requests a pack that the listing does not contain, and finds it."""
    key = packs.object_key(healthy.db, healthy.pack_of(healthy.uploaded, 1))

    class Forgetful(FaultyStore):
        @override
        async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
            async for info in super().list(prefix, after=after):
                if info.key != key:
                    yield info

    store = Forgetful(healthy.store)
    await bucket_survey.survey(SurveyContext(exam, store, healthy.keyring))

    assert ("get_range", key) in store.calls
    assert healthy.db.one("SELECT 1 FROM temp.seen_objects WHERE object_key = ?", (key,))


async def test_every_object_that_is_missing_from_a_listing_is_requested(
    healthy: Healthy, exam: Examination
) -> None:
    """fsck finds a pack that only the listing omits, even if many other packs are missing."""
    keys = [ObjectKey(f"pack/00/1-{number:032x}") for number in range(2 * FSCK_EXAMPLES_MAX)]
    healthy.db.begin()
    for key in keys:
        pack = packs.create(healthy.db, key, 1)
        healthy.db.run("UPDATE packs SET state = 2, live_bytes = 1 WHERE pack = ?", (pack,))
    healthy.db.commit()
    store = EarlyListing(healthy.store, "pack/00/")
    healthy.store.objects[keys[-1]] = b"x"

    await bucket_survey.survey(SurveyContext(exam, store, healthy.keyring))

    seen = healthy.db.all("SELECT object_key FROM temp.seen_objects")
    assert [key for key in keys if (key,) in seen] == [keys[-1]]
    assert set(keys) <= {call.key for call in store.calls}


async def test_survey_reads_packs_to_find_blocks_whose_row_is_wrong(
    healthy: Healthy, exam: Examination
) -> None:
    """The survey records the damaged block, and its location in the index of its pack."""
    block, _ = healthy.write_uploaded(healthy.attributed, b"one", b"two")
    row = healthy.db.one("SELECT pack_offset, stored_bytes FROM blocks WHERE block = ?", (block,))
    healthy.sql("UPDATE blocks SET pack_offset = -1 WHERE block = ?", block)
    cache_survey.survey(exam, healthy.files, healthy.tmp)

    await bucket_survey.survey(SurveyContext(exam, healthy.store, healthy.keyring))

    seen = healthy.db.all("SELECT block, pack_offset, stored_bytes FROM temp.seen_locations")
    assert row is not None
    assert seen == [(block, *row)]
    assert healthy.db.all("SELECT block FROM temp.seen_searched") == [(block,)]
    assert healthy.db.all("SELECT block FROM temp.seen_intact_copies") == [(block,)]


async def test_unreadable_older_image_is_reported_but_does_not_count_as_damage(
    healthy: Healthy, exam: Examination
) -> None:
    """An unreadable image that retention no longer needs is reported, but is not damage."""
    key = ObjectKey("image/000000000000-0-0123456789abcdef/manifest")
    healthy.store.objects[key] = b"rotten"

    await bucket_survey.survey(SurveyContext(exam, healthy.store, healthy.keyring))

    assert any(str(key) in note for note in exam.report.notes)
    assert healthy.db.all("SELECT * FROM temp.seen_image_faults") == []
    assert key in healthy.store.objects


async def test_unknown_packs_are_deleted_even_if_they_exceed_one_batch(
    healthy: Healthy, exam: Examination
) -> None:
    """The 1,500 unknown packs are deleted, and all known objects are kept."""
    known = set(healthy.store.objects)
    for number in range(1500):
        key, data = stray_pack(healthy.keyring, 1, number.to_bytes(16, "big"))
        healthy.store.objects[key] = data
    await bucket_survey.survey(
        SurveyContext(exam, healthy.store, healthy.keyring, epoch=healthy.epoch)
    )

    assert await bucket_survey.delete_unknown(exam, healthy.store) == 1500
    assert set(healthy.store.objects) == known


async def test_survey_checks_at_most_a_maximum_number_of_unreferenced_packs(
    healthy: Healthy, exam: Examination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unreferenced packs beyond the maximum count as foreign objects, so they are kept."""
    monkeypatch.setattr(bucket_survey, "FSCK_UNNAMED_PACKS_MAX", 3)
    for number in range(5):
        key, data = stray_pack(healthy.keyring, 1, number.to_bytes(16, "big"))
        healthy.store.objects[key] = data

    await bucket_survey.survey(
        SurveyContext(exam, healthy.store, healthy.keyring, epoch=healthy.epoch)
    )
    bucket_survey.count_foreign(exam)

    assert healthy.db.all("SELECT count(*) FROM temp.seen_unnamed") == [(3,)]
    assert exam.report.foreign_count == 2


async def test_survey_fails_if_a_request_for_an_unreferenced_pack_fails(
    healthy: Healthy, exam: Examination
) -> None:
    """A failed request for an unreferenced pack ends the survey with the store's error."""
    key, data = stray_pack(healthy.keyring, 1)
    healthy.store.objects[key] = data
    store = FaultyStore(healthy.store)
    store.fail("get_range")

    with pytest.raises(TransientStoreError):
        await bucket_survey.survey(SurveyContext(exam, store, healthy.keyring, epoch=healthy.epoch))


async def test_unreferenced_packs_of_a_mounted_filesystem_are_not_checked(healthy: Healthy) -> None:
    """A mount may have uploaded packs whose rows are not committed yet."""
    key, data = stray_pack(healthy.keyring, 1)
    healthy.store.objects[key] = data
    exam = Examination(healthy.db, Evidence(healthy.db), Report(), now_ns=NOW_NS, mounted=True)

    await bucket_survey.survey(
        SurveyContext(exam, healthy.store, healthy.keyring, epoch=healthy.epoch)
    )

    assert healthy.db.all("SELECT count(*) FROM temp.seen_unnamed") == [(0,)]


# --- images that another host makes during a survey ----------------------------------------------


class _Moving(FaultyStore):
    """A bucket whose objects another host replaces after each request of a given kind."""

    def __init__(self, inner: MemoryStore, method: str, later: dict[ObjectKey, bytes]) -> None:
        super().__init__(inner)
        self._bucket, self._method, self._later = inner, method, later

    def _change_bucket(self, method: str) -> None:
        if method == self._method:
            self._bucket.objects = dict(self._later)

    @override
    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        async for info in super().list(prefix, after=after):
            yield info
        self._change_bucket("list")

    @override
    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        fetched = await super().get(key, max_bytes)
        self._change_bucket("get")
        return fetched


def _image_faults(exam: Examination) -> list[list[object]]:
    return [list(row) for row in exam.db.all("SELECT * FROM temp.seen_image_faults")]


async def _before_and_after(
    power: Power, session: Session
) -> tuple[dict[ObjectKey, bytes], dict[ObjectKey, bytes]]:
    """Return the bucket's objects from before and after newer images replaced the first image."""
    write_file(session, b"one")
    await session.make_image()
    before = dict(power.store.objects)
    for content in (b"two", b"three"):
        write_file(session, content)
        await session.make_image()
    old = {key for key in before if key.startswith("image/")}
    after = {key: data for key, data in power.store.objects.items() if key not in old}
    session.durability.commit()
    return before, after


@pytest.mark.parametrize("deep", [False, True], ids=["listed", "deep"])
@pytest.mark.parametrize("method", ["list", "get"])
async def test_image_that_another_host_replaces_during_the_survey_is_not_reported_as_missing(
    power: Power, method: str, deep: bool
) -> None:
    """Objects of an image that another host replaced during the survey are not damage."""
    async with power.session("a", tasks=False) as session:
        power.store.objects, later = await _before_and_after(power, session)
        db, keyring = session.db, session.volume.keyring
        exam = Examination(db, Evidence(db), Report(), now_ns=NOW_NS, mounted=False)

        await bucket_survey.survey(
            SurveyContext(exam, _Moving(power.store, method, later), keyring, deep=deep)
        )

        assert _image_faults(exam) == []
        power.store.objects = later


@pytest.mark.parametrize("deep", [False, True], ids=["listed", "deep"])
async def test_missing_piece_of_the_current_image_is_recorded_as_damage(
    power: Power, deep: bool
) -> None:
    """No host can restore an image from which a piece is missing."""
    async with power.session("a", tasks=False) as session:
        _, power.store.objects = await _before_and_after(power, session)
        db, keyring = session.db, session.volume.keyring
        exam = Examination(db, Evidence(db), Report(), now_ns=NOW_NS, mounted=False)
        piece = max(key for key in power.store.objects if key.endswith("/000000"))
        data = power.store.objects.pop(piece)

        await bucket_survey.survey(SurveyContext(exam, power.store, keyring, deep=deep))

        assert _image_faults(exam) == [[piece, "this image piece is missing"]]
        power.store.objects[piece] = data


@pytest.mark.parametrize("deep", [False, True], ids=["listed", "deep"])
async def test_survey_of_a_hostile_manifest_makes_a_bounded_number_of_requests(
    power: Power, deep: bool
) -> None:
    """If a manifest lists 1,000 missing pieces, the survey makes fewer than 100 requests."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"one")
        head = await session.imager.make()
        healthy = dict(power.store.objects)
        keyring = session.volume.keyring
        image = image_codec.decode(head.manifest_key, healthy[head.manifest_key], keyring)
        prefix = image_codec.image_of(head.manifest_key)
        pieces = tuple(
            Piece(image_codec.piece_key(prefix, number), IMAGE_PIECE_BYTES, image_codec.NO_HASH)
            for number in range(1000)
        )
        hostile = replace(image, pieces=pieces, database_bytes=1000 * IMAGE_PIECE_BYTES)
        data = image_codec.encode(hostile, head.manifest_key, keyring)
        lease = lease_codec.decode(lease_codec.KEY, healthy[lease_codec.KEY])
        named = head._replace(manifest_hash=image_codec.content_hash(data))
        store = FaultyStore(power.store)
        power.store.objects |= {
            head.manifest_key: data,
            lease_codec.KEY: lease_codec.encode(replace(lease, head=named)),
        }
        exam = Examination(session.db, Evidence(session.db), Report(), now_ns=NOW_NS, mounted=False)

        await bucket_survey.survey(SurveyContext(exam, store, keyring, deep=deep))

        noted = {str(key): str(why) for key, why in _image_faults(exam)}
        assert len(noted) == IMAGE_PIECE_FAULTS_MAX + 1
        assert "were not read" in noted[head.manifest_key]
        assert len(store.calls) < 100
        power.store.objects = healthy
