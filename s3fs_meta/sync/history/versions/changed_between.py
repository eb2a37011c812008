"""The inodes that changed between two txgs, according to the history index.

Owns: reading the index, and reading the changelogs of txgs that are not in the index. Does not
know: how inodes changed.
"""

from collections.abc import Iterable

from s3fs_meta.codec.history_index import HistoryIndex
from s3fs_meta.limits import DIFF_CHANGELOGS_MAX, DIFF_CHANGES_MAX, HISTORY_FETCHES_MAX
from s3fs_meta.meta import row_history
from s3fs_meta.meta.row_history import ChangedRows
from s3fs_meta.model import Ino, Txg
from s3fs_meta.sync.history.index.index_search import HistorySearch, TooManyError
from s3fs_meta.sync.history.versions.changelog_reader import ChangelogReader, UnreadableTxg
from s3fs_meta.sync.progress import Progress


async def changed_between(
    search: HistorySearch,
    changelogs: ChangelogReader,
    after: Txg,
    last: Txg,
    progress: Progress,
    *,
    changes_max: int = DIFF_CHANGES_MAX,
    changelogs_max: int = DIFF_CHANGELOGS_MAX,
) -> set[Ino] | None:
    """Return the inodes that changed in a range of txgs, and the directories whose entries changed.

    Args:
        search: searches the history index.
        changelogs: reads changes that are not in the index.
        after: the txg before the range.
        last: the last txg of the range.
        progress: called with the number of changelogs that were read.
        changes_max: the maximum number of inodes to return.
        changelogs_max: the maximum number of changelogs to read.

    Returns:
        None if the changes of a txg are unknown, if more than *changes_max* inodes changed, or if
        more than *changelogs_max* txgs are not in the index. For example, the txgs between a kept
        point and the retention floor are not in the index.

    Raises:
        StoreError: the bucket cannot be read.
    """
    found: set[Ino] = set()

    def take(index: HistoryIndex, mask: int) -> None:
        found.update(row.ino for row in index.inodes if (row.content | row.other) & mask)
        found.update(row.parent for row in index.names if row.mask & mask)
        if len(found) > changes_max:
            raise TooManyError

    try:
        missing = await search.collect(Txg(after + 1), last, take, changelogs_max)
    except TooManyError:
        return None
    for at in range(0, len(missing), HISTORY_FETCHES_MAX):
        for one in await changelogs.scan(missing[at : at + HISTORY_FETCHES_MAX], _changed):
            if isinstance(one, UnreadableTxg):
                return None
            found.update(*one.results)
        progress("changelogs", min(at + HISTORY_FETCHES_MAX, len(missing)), len(missing))
        if len(found) > changes_max:
            return None
    return found


def _changed(changeset: bytes, is_complete: bool) -> set[Ino]:
    rows: ChangedRows = row_history.changed_rows(changeset, is_complete=is_complete)
    parents: Iterable[Ino] = (lost.parent for lost in rows.names)
    return {*rows.content, *rows.other, *parents}
