"""A full check of one open filesystem: fsck without its command line.

Owns: the order of the surveys. Does not know: opening a filesystem, terminals.
Tasks: one. Surveys have schedule points; the check of the rows has none.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.check import marks
from s3fs_meta.check.context import NO_EPOCH, Examination, SurveyContext
from s3fs_meta.check.fsck import judge
from s3fs_meta.check.observations import Evidence
from s3fs_meta.check.report import Mode, Report
from s3fs_meta.check.rules.bucket import UNKNOWN_NAME
from s3fs_meta.check.survey import bucket as bucket_survey
from s3fs_meta.check.survey import cache as cache_survey
from s3fs_meta.check.survey import chain as chain_survey
from s3fs_meta.check.survey import history as history_survey
from s3fs_meta.check.survey import indexes
from s3fs_meta.check.survey import kept as kept_survey
from s3fs_meta.check.survey import packs as pack_survey
from s3fs_meta.clock import Clock
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.counted import counted
from s3fs_meta.hashed_dir import NumberedDir
from s3fs_meta.meta.db.database import Database
from s3fs_meta.model import Epoch
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.progress import Progress, no_progress


@dataclass(frozen=True, slots=True)
class FsckOptions:
    """The options of fsck that the user chose."""

    repair: Mode = Mode.REPORT
    deep: bool = False
    delete_unknown: bool = False  # delete packs of this filesystem that have no row


@dataclass(frozen=True, slots=True)
class CacheDirectory:
    """The directories of the block cache on this host."""

    blocks: Path
    tmp: Path


@dataclass(frozen=True, slots=True)
class Examined:
    """A filesystem that is open for a check.

    Attributes:
        db: the database. No other process changes it, or it is open read-only for a report.
        cache: the block cache of this host; None if the cache is missing or a mount uses it.
        mounted: processes may have files open, so inodes without a name are valid.
        epoch: the current epoch; the writers of earlier epochs are fenced.
        facts: uuid and block_bytes according to the superblock, in the form of ``properties``.
    """

    db: Database
    store: ObjectStore
    keyring: Keyring
    cache: CacheDirectory | None = None
    mounted: bool = False
    epoch: Epoch = NO_EPOCH
    facts: Mapping[str, bytes] = field(default_factory=dict)


async def check_filesystem(
    examined: Examined,
    wanted: FsckOptions,
    report: Report,
    clock: Clock,
    progress: Progress = no_progress,
    *,
    blocking: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Report:
    """Run the surveys that the options select, check the invariants, make the allowed repairs.

    Args:
        examined: the filesystem.
        wanted: the options that the user chose.
        report: receives the findings, and is returned.
        clock: supplies the times for new rows.
        progress: receives the progress of listings and downloads.
        blocking: a context manager around each call that blocks the event loop for long. An
            exception from it before the commit undoes all repairs.

    Raises:
        StoreError: a request failed. No row was changed, unless the failed request was a DELETE:
            objects are deleted after the repairs.
        CorruptionError: SQLite cannot read the database; no row was changed.
        DatabaseError: SQLite failed; no row was changed, unless only the damage marks could not be
            written after the repairs.
    """
    db, store, keyring, cache = examined.db, examined.store, examined.keyring, examined.cache
    exam = Examination(
        db,
        Evidence(db),
        report,
        now_ns=clock.now_ns(),
        mounted=examined.mounted,
        facts=examined.facts,
    )
    repairs = wanted.repair is not Mode.REPORT
    exam.block_hash = keyring.block_hash
    if cache is not None:
        with blocking():
            cache_survey.survey(exam, BlockFiles(cache.blocks, cache.tmp), cache.tmp)
    context = SurveyContext(
        exam,
        store,
        keyring,
        progress,
        deep=wanted.deep,
        rescue=wanted.repair is Mode.ALL,
        epoch=examined.epoch,
    )
    await _survey_bucket(context)
    with blocking():
        is_judged = judge(exam, wanted.repair)
    if is_judged and repairs:
        marks.settle(exam)
    if repairs and cache is not None:
        NumberedDir(cache.blocks).prune_all()
    if repairs:
        await _remove_wrong_indexes(exam, store)
    if wanted.repair is Mode.ALL and wanted.delete_unknown:
        if is_judged:
            await _delete_unknown(exam, store, keyring)
        else:
            # A damaged database may have lost the rows of packs that have live blocks.
            report.remember("no pack was deleted, because not all invariants were checked")
    return report


async def _survey_bucket(context: SurveyContext) -> None:
    await bucket_survey.survey(context)
    await chain_survey.survey(context)
    await kept_survey.survey(context)
    if context.deep:
        await history_survey.survey(context)
    bucket_survey.count_foreign(context.exam)
    if context.deep:
        await pack_survey.survey(context)
        await indexes.search(context, indexes.UNREADABLE)
    marks.note_packs(context.exam)


async def _remove_wrong_indexes(exam: Examination, store: ObjectStore) -> None:
    removed = await history_survey.remove_faulty(exam, store)
    if removed:
        exam.report.remember(
            f"deleted {counted(removed, 'wrong object')} of the history index; the next mount for"
            " writing creates the index again"
        )


async def _delete_unknown(exam: Examination, store: ObjectStore, keyring: Keyring) -> None:
    report = exam.report
    spared = await kept_survey.spare_packs(exam, store, keyring)
    if spared:
        report.remember(spared)
    deleted = await bucket_survey.delete_unknown(exam, store)
    report.settle(UNKNOWN_NAME, 0)
    if deleted:
        packs = counted(deleted, "pack")
        report.remember(f"deleted {packs} of fenced writers to which no row refers")
