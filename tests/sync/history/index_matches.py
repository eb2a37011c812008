"""Helpers for searches with the history index, and for the same searches without it."""

from s3fs_meta.codec.history_index import HistoryIndex
from s3fs_meta.model import Ino, Txg
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.history.index import index_runs
from s3fs_meta.sync.history.index.index_runs import RunChanges
from s3fs_meta.sync.history.index.index_search import HistorySearch, Match
from s3fs_meta.sync.session import Session
from tests.sync.conftest import Power


def search_of(power: Power, session: Session) -> HistorySearch:
    """Return a search in the history of a session."""
    opened = session.volume
    return HistorySearch(power.store, opened.keyring, opened.uuid, session.link)


def of_inode(ino: Ino) -> Match:
    """Return a function that matches changes of one inode."""

    def match(index: HistoryIndex) -> int:
        row = index.inodes.find(ino)
        return 0 if row is None else row.content | row.other

    return match


async def index_all(session: Session) -> None:
    """Build all missing index objects."""
    await session.indexer.make_due()
    while session.indexer.older:
        await session.indexer.make_due()


async def found_by(search: HistorySearch, match: Match, first: int = 1) -> list[tuple[Txg, bool]]:
    """Return the candidate txgs of a search, latest first."""
    walk = search.walk(match, Txg(first))
    found: list[tuple[Txg, bool]] = []
    while batch := await walk.take(7):
        found += [(candidate.txg, candidate.is_sure) for candidate in batch]
    return found


async def all_changes(session: Session) -> list[tuple[Txg, RunChanges]]:
    """Return the changes in each changelog, latest first, without using the index."""
    opened = session.volume
    found = []
    for txg in range(session.link.txg, 0, -1):
        fetched = await chain.fetch(opened.store, opened.keyring, opened.uuid, Txg(txg))
        changes = (await index_runs.changes_of(opened.store, opened.keyring, fetched)).changes
        if changes is not None:
            found.append((Txg(txg), changes))
    return found


def changing(changes: list[tuple[Txg, RunChanges]], ino: Ino) -> list[tuple[Txg, bool]]:
    """Return the txgs whose changelogs change an inode, latest first."""
    return [(txg, True) for txg, one in changes if one.inodes.find(ino) is not None]
