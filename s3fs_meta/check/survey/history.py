"""The survey of the history index: every index object is compared with its changelogs.

Owns: reading index objects. Only ``remove_faulty`` changes the bucket, as a repair.
Does not know: the comparison of index objects (``sync.history.index.index_check``).
Keeps: index objects are derived data. If one is missing, queries need more requests until the next
writer rebuilds it.
Tasks: one. No transaction may be open.
"""

from s3fs_meta.check.context import Examination, SurveyContext
from s3fs_meta.check.observations import Need
from s3fs_meta.codec import history_index
from s3fs_meta.limits import DELETE_BATCH_KEYS
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.history.index.index_check import IndexChecker


async def survey(context: SurveyContext) -> None:
    """Record the index objects that are damaged, or contradict their changelogs.

    Raises:
        StoreError: the bucket cannot be read.

    May yield to other tasks.
    """
    exam = context.exam
    checker = IndexChecker(context.store, context.keyring, exam.uuid)
    sql = "SELECT object_key FROM temp.seen_objects WHERE object_key GLOB ?"
    rows = exam.db.all(sql, (f"{history_index.PREFIX}*",))
    keys = [ObjectKey(str(row[0])) for row in rows]
    keys = [key for key in keys if history_index.RUNS.parse_key(key) is not None]
    for done, key in enumerate(keys, 1):
        why = await checker.fault(key)
        if why is not None:
            exam.evidence.note_index_faults([(key, why)])
        context.progress("index objects", done, len(keys))
    exam.evidence.note_foreign(checker.foreign)
    exam.evidence.surveyed |= Need.HISTORY


async def remove_faulty(exam: Examination, store: ObjectStore) -> int:
    """Delete the index objects that the repair of I71 has marked; return their number.

    May yield to other tasks.
    """
    keys = [
        ObjectKey(str(row[0]))
        for row in exam.db.all("SELECT object_key FROM temp.seen_index_faults WHERE doomed")
    ]
    for at in range(0, len(keys), DELETE_BATCH_KEYS):
        await store.delete(keys[at : at + DELETE_BATCH_KEYS])
    return len(keys)
