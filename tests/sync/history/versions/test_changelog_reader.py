"""Tests of reading individual changelogs, which a search keeps in memory for a while."""

from s3fs_meta.model import Txg
from s3fs_meta.sync.history.versions.changelog_reader import ChangelogReader
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import Power, changelogs, unmount, write_file


async def test_changelogs_in_memory_are_limited_although_they_contain_few_changes(
    power: Power,
) -> None:
    """A week of history has 120,000 changelogs, and most of them are small."""
    async with power.session("a", tasks=False) as session:
        for number in range(20):
            write_file(session, b"content %d" % number)
            await session.flush()
        await unmount(session)
    keys, store = await power.keys(), FaultyStore(power.store)
    reader = ChangelogReader(store, keys.keyring, keys.superblock.uuid, cached_bytes_max=20_000)
    txgs = changelogs(power)
    for txg in txgs:
        await reader.fetch(txg)
    store.calls.clear()

    assert (await reader.fetch(txgs[-1])).txg == txgs[-1]
    assert store.calls == []
    for txg in txgs[:-10]:
        await reader.fetch(Txg(txg))
    assert len(store.calls) == len(txgs) - 10
