"""The survey of the kept points: their objects, images, changelogs and packs.

Owns: reading the objects. Does not know: how faults are reported (``rules.bucket``).
Keeps: nothing is changed; objects that kept points need are never recorded as foreign.
Tasks: one. No transaction may be open.
"""

from collections.abc import Iterator
from contextlib import aclosing
from typing import NamedTuple

from s3fs_meta.check.context import Examination, SurveyContext
from s3fs_meta.check.observations import Need
from s3fs_meta.check.survey.bucket import piece_fault
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.changelog import NO_FLOOR
from s3fs_meta.codec.kept_point import KeptPoint
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.counted import counted
from s3fs_meta.errors import CorruptionError, FormatError, ObjectMissingError
from s3fs_meta.limits import KEPT_FAULTS_MAX
from s3fs_meta.meta.tables import properties
from s3fs_meta.model import Epoch, ObjectKey, PackState, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import abandoned_txgs, chain
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.history.kept.kept_points import KeptPointReader, KeptPoints
from s3fs_meta.sync.history.kept.pins import KeptPointPins

_Fault = tuple[str, str]  # key of an object, and a description of the object's fault


async def survey(context: SurveyContext) -> None:
    """Record missing objects of kept points, and with *deep* also damaged objects.

    Call ``bucket.survey`` first. If a writer drops a point during the survey, this run may report
    faults of the point that the next run no longer reports.

    Raises:
        StoreError: the store is unavailable or refuses the request.

    Always yields to other tasks.
    """
    exam = context.exam
    try:
        kept = await _kept(exam, context.store, context.keyring)
    except FormatError:
        return  # the repair for I5 restores the uuid, and the next run finds the kept points
    survey_of = _Survey(context)
    for done, point in enumerate(kept.points):
        context.progress("kept points", done, len(kept.points))
        faults = await survey_of.faults(point)
        exam.evidence.note_kept_faults((key, point.name, why) for key, why in faults)
    exam.evidence.note_kept_faults((one.key, "(unknown)", one.why) for one in kept.unreadable)
    exam.evidence.note_kept_faults(_missing_packs(exam, kept))
    exam.evidence.surveyed |= Need.KEPT


async def spare_packs(exam: Examination, store: ObjectStore, keyring: Keyring) -> str:
    """Forget the packs without a row that points in time may need, so that they are not deleted.

    Returns:
        A note with the number of these packs, or "" without such packs.

    Raises:
        StoreError: the kept points cannot be read.

    May yield to other tasks.
    """
    rows = exam.db.all("SELECT object_key FROM temp.seen_unnamed")
    needed = [ObjectKey(str(row[0])) for row in rows]
    why = "txgs of a history that a repair replaced may need them"
    if _retains_one_history(exam):
        kept = await _kept(exam, store, keyring)
        pins = KeptPointPins(kept, (), Txg(exam.db.counters.txg))
        needed = [
            key for key in needed if pins.needs_stray_pack(pack_codec.parse_key(key) or Epoch(0))
        ]
        why = "kept points may need them"
    for key in needed:
        exam.db.all("DELETE FROM temp.seen_unnamed WHERE object_key = ?", (key,))
    return f"{counted(len(needed), 'pack')} without a row are kept: {why}" if needed else ""


def _retains_one_history(exam: Examination) -> bool:
    """Return whether no retained txg is from a history that a repair has replaced.

    Otherwise, a retained txg may need any pack without a row.
    """
    link = chain.recorded(exam.db)
    floor = NO_FLOOR if link is None else link.floor
    is_replacing = abandoned_txgs.wanted(exam.db) is not None
    return not is_replacing and floor >= properties.replaced_history(exam.db)


async def _kept(exam: Examination, store: ObjectStore, keyring: Keyring) -> KeptPoints:
    return await KeptPointReader(store, keyring, exam.uuid).all()


class _Read(NamedTuple):
    """The known facts about one changelog."""

    why: str  # fault of the changelog; empty if the changelog is intact, or was only listed
    previous: str = ""
    hash: str = ""


class _Survey:
    """The survey of the metadata of kept points; objects that several points need are read once."""

    def __init__(self, context: SurveyContext) -> None:
        self._context = context
        self._store = context.store
        self._keyring = context.keyring
        # Fault of each image piece; empty if the piece is intact.
        self._pieces: dict[ObjectKey, str] = {}
        self._changelogs: dict[Txg, _Read] = {}

    async def faults(self, point: KeptPoint) -> list[_Fault]:
        """Return the faults in a point's image and changelogs.

        The survey of a point ends after KEPT_FAULTS_MAX bad changelogs, because a wrong object may
        contain a txg far in the future.
        """
        found: list[_Fault] = []
        try:
            manifest = await image_head.load_manifest(self._store, self._keyring, point.image)
        except (ObjectMissingError, CorruptionError) as exc:
            found.append((point.image.key, str(exc)))
        else:
            for piece in manifest.pieces:
                if piece.key not in self._pieces:
                    self._pieces[piece.key] = await piece_fault(self._context, piece)
                found.append((piece.key, self._pieces[piece.key]))
        before, bad = "", 0
        for number in range(max(point.image_txg, 1), point.txg + 1):
            txg = Txg(number)
            if bad == KEPT_FAULTS_MAX:
                why = f"{bad} earlier changelogs that the kept point needs are missing or damaged"
                return [*(one for one in found if one[1]), (changelog_codec.key_of(txg), why)]
            if txg not in self._changelogs:
                self._changelogs[txg] = await self._changelog(txg, point.uuid)
            read = self._changelogs[txg]
            found.append((changelog_codec.key_of(txg), read.why))
            bad += bool(read.why)
            if before and read.hash and read.previous != before:
                why = f"it does not record the hash of changelog {txg - 1}"
                found.append((changelog_codec.key_of(txg), why))
            before = read.hash
        why = "" if before in {"", point.hash} else "it is not the changelog that was kept"
        return [one for one in [*found, (changelog_codec.key_of(point.txg), why)] if one[1]]

    async def _changelog(self, txg: Txg, uuid: str) -> _Read:
        try:
            if not self._context.deep:
                await self._context.require(changelog_codec.key_of(txg))
                return _Read("")
            fetched = await chain.fetch(self._store, self._keyring, uuid, txg)
            parts = chain.sections(self._store, self._keyring, fetched.changelog)
            async with aclosing(parts) as sections:
                async for _section in sections:
                    pass  # reading a section also decodes it
        except (ObjectMissingError, CorruptionError) as exc:
            return _Read(str(exc))
        return _Read("", fetched.changelog.previous, fetched.link.hash)


def _missing_packs(exam: Examination, kept: KeptPoints) -> Iterator[tuple[str, str, str]]:
    """Yield missing packs that only kept points need, once for each of these points."""
    rows = exam.db.all(
        "SELECT p.pack, CAST(p.object_key AS BLOB), p.died_txg FROM packs AS p"
        " LEFT JOIN temp.seen_objects AS o ON o.object_key = p.object_key"
        f" WHERE o.object_key IS NULL AND p.state = {PackState.STORED:d}"
        " AND p.died_txg IS NOT NULL AND p.pack IN (SELECT pack FROM temp.seen_packs)"
    )
    for pack, key, died in rows:
        for point in kept.points:
            if point.txg < died and pack < point.next_pack:
                yield key.decode(errors="backslashreplace"), point.name, "this pack is missing"
