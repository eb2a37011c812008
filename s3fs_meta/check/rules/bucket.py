"""Invariants of objects in the bucket. Surveys compare objects with rows; --deep reads all bytes.

The invariants require ``survey.bucket``, ``survey.chain`` or ``survey.packs``.
"""

from typing import Final

from s3fs_meta.check.context import Examination, Invariant
from s3fs_meta.check.observations import Need
from s3fs_meta.check.report import Severity
from s3fs_meta.check.rules import blocks as block_rules
from s3fs_meta.model import PackState

IS_PACK_KEY: Final = "object_key GLOB 'pack/*'"
_NOT_NAMED: Final = (
    "NOT IN (SELECT object_key FROM packs)"
    # fsck --rebuild records an unreadable pack as a property, not as a row of packs.
    " AND {0} NOT IN (SELECT name FROM properties)"
)
IS_UNNAMED: Final = f"{IS_PACK_KEY} AND object_key {_NOT_NAMED.format('object_key')}"
_PACK_OBJECTS: Final = "packs AS p LEFT JOIN temp.seen_objects AS o ON o.object_key = p.object_key"
_NOT_LISTED: Final = "o.object_key IS NULL AND p.pack IN (SELECT pack FROM temp.seen_packs)"
_PACK_MISSING: Final = f"p.state = {PackState.STORED:d} AND {_NOT_LISTED}"
# The state and live_bytes may be damaged: their repairs make any pack with blocks STORED and live.
MISSING_KEYS: Final = (
    f"SELECT p.object_key, p.object_bytes FROM {_PACK_OBJECTS}"
    f" WHERE {_NOT_LISTED} AND p.{IS_PACK_KEY} AND p.object_key NOT GLOB '*[^ -~]*'"
    " AND (p.live_bytes > 0 OR EXISTS (SELECT 1 FROM blocks AS b WHERE b.pack = p.pack))"
)
MISSING_PACKS: Final = (
    f"SELECT p.pack FROM {_PACK_OBJECTS} WHERE {_PACK_MISSING} AND p.live_bytes > 0"
)
IN_MISSING_PACKS: Final = (
    "SELECT b.block FROM blocks AS b"
    f" WHERE b.pack IN (SELECT p.pack FROM {_PACK_OBJECTS} WHERE {_PACK_MISSING})"
)
_WRONG_SIZE: Final = (
    f"p.state = {PackState.STORED:d} AND o.size_bytes <> p.object_bytes"
    " AND EXISTS (SELECT 1 FROM blocks AS b WHERE b.pack = p.pack)"
)
WRONG_SIZES: Final = f"{_PACK_OBJECTS} WHERE {_WRONG_SIZE}"
TORN_PACKS: Final = (
    f"SELECT p.pack FROM {WRONG_SIZES} AND p.pack IN (SELECT pack FROM temp.seen_bad_indexes)"
)
_SOUND_COPIES: Final = (
    "SELECT b.block FROM blocks AS b JOIN temp.seen_intact_copies AS s ON s.block = b.block"
    " WHERE b.pack IN ({packs})"
)
_LOST_ADVICE: Final = (
    "reading the blocks returns an error; restore the object if you have a copy, or first run"
    " s3fs-meta fsck -y on a host that may have cached them, to upload them again; if no host has"
    " the blocks, -y turns them into holes that user.s3fs-meta.lost lists"
)


def _mend_missing(exam: Examination, invariant: Invariant) -> None:
    blocks = f"SELECT b.block FROM blocks AS b WHERE b.pack IN ({invariant.select('p.pack')})"
    block_rules.relocate(exam, blocks)
    block_rules.upload_again(exam, blocks)
    block_rules.record_lost(exam, blocks)


def _mend_size(exam: Examination, invariant: Invariant) -> None:
    """Correct the size in the rows of intact packs; upload the blocks of damaged packs again.

    The survey has read these packs, and has put readable blocks of damaged packs into the cache
    directory. I51 repairs the unreadable blocks.
    """
    wrong = invariant.select("p.pack")
    torn = (
        "SELECT x.pack FROM temp.seen_bad_indexes AS x UNION SELECT b.pack"
        " FROM temp.seen_unreadable AS u JOIN blocks AS b ON b.block = u.block"
        " WHERE b.pack IS NOT NULL"
    )
    exam.run(
        "UPDATE packs SET object_bytes = (SELECT o.size_bytes FROM temp.seen_objects AS o"
        f" WHERE o.object_key = packs.object_key) WHERE pack IN ({wrong}) AND pack NOT IN ({torn})"
    )
    block_rules.upload_again(exam, _SOUND_COPIES.format(packs=wrong))


def _mend_unreadable(exam: Examination, invariant: Invariant) -> None:
    blocks = invariant.select("u.block")
    block_rules.relocate(exam, blocks)
    exam.db.all(
        "DELETE FROM temp.seen_unreadable WHERE block IN (SELECT b.block"
        " FROM temp.seen_locations AS s JOIN blocks AS b ON b.block = s.block"
        " JOIN packs AS p ON p.pack = b.pack WHERE s.object_key = p.object_key"
        " AND s.pack_offset = b.pack_offset AND s.hash = b.hash)"
    )
    block_rules.upload_again(exam, blocks)
    block_rules.record_lost(exam, blocks)


def _leave_pack(exam: Examination, invariant: Invariant) -> None:
    """Upload the rescued blocks of a damaged pack from the cache directory to a new pack."""
    block_rules.upload_again(exam, _SOUND_COPIES.format(packs=invariant.select("x.pack")))


def _publish_anew(exam: Examination, _invariant: Invariant) -> None:
    """Request a new image at the end of the run, which does not depend on any earlier image."""
    exam.run("DELETE FROM temp.seen_image_faults")
    # After the new image is stored, only earlier points in time need the faulty changelogs.
    exam.run("UPDATE temp.seen_chain_faults SET past = 1")
    exam.report.remember("a complete image of the metadata will be stored in the bucket")


def _doom_indexes(exam: Examination, _invariant: Invariant) -> None:
    """Mark wrong history index objects for deletion at the end of the run."""
    exam.db.all("UPDATE temp.seen_index_faults SET doomed = 1")


_UNREADABLE: Final = "temp.seen_unreadable AS u JOIN blocks AS b ON b.block = u.block"

BUCKET: Final = (
    Invariant(
        46,
        "the object of a pack with live blocks is in the bucket",
        source=_PACK_OBJECTS,
        damaged=_PACK_MISSING,
        columns="p.pack",
        listing="SELECT m.ino, m.block_index, m.block, p.object_key FROM block_map AS m"
        " JOIN blocks AS b ON b.block = m.block JOIN packs AS p ON p.pack = b.pack"
        f" WHERE p.pack IN (SELECT p.pack FROM {_PACK_OBJECTS} WHERE {_PACK_MISSING})",
        text="block {2} at index {1} of file {0} is in {3}, which is missing",
        repair=_mend_missing,
        needs=Need.OBJECTS,
        advice=_LOST_ADVICE,
    ),
    Invariant(
        47,
        "the object of a pack has the size that its row records",
        source=_PACK_OBJECTS,
        damaged=_WRONG_SIZE,
        columns="p.pack, p.object_key, p.object_bytes, o.size_bytes",
        text="{1} (pack {0}) has {3} bytes instead of {2}: it is another object, or truncated",
        repair=_mend_size,
        needs=Need.OBJECTS,
        about_inode=False,
        advice="restore the object if you have a copy; -y uploads readable and cached blocks again"
        " in another pack",
    ),
    Invariant(
        48,
        "the kept images are complete, and readable (with --deep)",
        source="temp.seen_image_faults AS x",
        columns="x.object_key, x.why",
        text="{0}: {1}",
        repair=_publish_anew,
        safe=True,
        needs=Need.OBJECTS,
        about_inode=False,
        advice="no data is lost if the local state is complete: -p stores an image in the bucket",
    ),
    Invariant(
        49,
        "every pack that this filesystem wrote in an earlier epoch has a row",
        source="temp.seen_unnamed AS x",
        damaged=f"x.object_key {_NOT_NAMED.format('x.object_key')}",
        columns="x.object_key",
        text="no row refers to pack {0} of a fenced writer",
        severity=Severity.LEFTOVER,
        needs=Need.OBJECTS | Need.UNMOUNTED,
        about_inode=False,
        advice="the pack is harmless: garbage collection deletes it later; -y --delete-unknown"
        " deletes it now, unless a point in time may need it",
    ),
)

CHAIN: Final = (
    Invariant(
        67,
        "the changelogs after the newest image exist and form a chain",
        source="temp.seen_chain_faults AS x",
        damaged="NOT x.past",
        columns="x.object_key, x.why",
        text="{0}: {1}",
        repair=_publish_anew,
        safe=True,
        needs=Need.OBJECTS | Need.CHAIN,
        about_inode=False,
        advice="no data is lost if the local state is complete: -p stores an image in the bucket",
    ),
    Invariant(
        68,
        "the changelogs of all retained points in time exist",
        source="temp.seen_chain_faults AS x",
        damaged="x.past",
        columns="x.object_key, x.why",
        text="{0}: {1}",
        severity=Severity.LEFTOVER,
        needs=Need.OBJECTS | Need.CHAIN | Need.UNMOUNTED,
        about_inode=False,
        advice="the current state is complete; the points in time from that txg to the next image"
        " are unavailable",
    ),
)

HISTORY: Final = (
    Invariant(
        71,
        "every index object of the history contains the changes in its changelogs (with --deep)",
        source="temp.seen_index_faults AS x",
        damaged="NOT x.doomed",
        columns="x.object_key, x.why",
        text="{0}: {1}",
        repair=_doom_indexes,
        safe=True,
        needs=Need.OBJECTS | Need.HISTORY,
        about_inode=False,
        advice="no file is affected, but versions and diff may miss changes: -p --deep deletes the"
        " object, and the next mount for writing creates it again",
    ),
)
KEPT: Final = (
    Invariant(
        72,
        "the objects that kept points need exist, and are readable (with --deep)",
        source="temp.seen_kept_faults AS x",
        columns="x.object_key, x.name, x.why",
        text="kept point {1}: {0}: {2}",
        needs=Need.OBJECTS | Need.KEPT,
        about_inode=False,
        advice="the current state is complete; --objects-from restores objects from a copy of the"
        " bucket, s3fs-meta keep --drop drops the point",
    ),
)

CONTENT: Final = (
    Invariant(
        50,
        "the index of a pack lists its blocks (with --deep, or in packs with wrong live bytes or marked"
        " as damaged)",
        source="temp.seen_bad_indexes AS x JOIN packs AS p ON p.pack = x.pack",
        damaged="EXISTS (SELECT 1 FROM blocks AS b WHERE b.pack = x.pack)"
        f" AND p.pack NOT IN (SELECT p.pack FROM {WRONG_SIZES})",  # I47 repairs these packs
        columns="x.pack, p.object_key, x.why",
        text="{1} (pack {0}): {2}",
        repair=_leave_pack,
        needs=Need.OBJECTS,
        about_inode=False,
        advice="the blocks of the pack can be read; -y uploads them again in another pack",
    ),
    Invariant(
        51,
        "every block matches its hash (with --deep, or in packs of a wrong size, with wrong live"
        " bytes, or marked as damaged)",
        source=_UNREADABLE,
        damaged="b.pack IS NOT NULL",
        columns="u.block",
        listing="SELECT m.ino, m.block_index, m.block, u.why FROM block_map AS m"
        " JOIN blocks AS b ON b.block = m.block"
        " JOIN temp.seen_unreadable AS u ON u.block = b.block WHERE b.pack IS NOT NULL",
        text="block {2} at index {1} of file {0} cannot be read: {3}",
        repair=_mend_unreadable,
        needs=Need.OBJECTS,
        advice=_LOST_ADVICE,
    ),
)

UNREADABLE_BLOCKS: Final = CONTENT[-1]
_UNKNOWN: Final = BUCKET[-1]
UNKNOWN: Final = _UNKNOWN.query
UNKNOWN_NAME: Final = _UNKNOWN.name
