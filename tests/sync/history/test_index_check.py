"""Comparison of index objects with their changelogs."""

from dataclasses import replace

from s3fs_meta.codec import history_index
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.codec.history_index import RUNS
from s3fs_meta.limits import HISTORY_FAN_OUT
from s3fs_meta.model import Txg
from s3fs_meta.sync.history.index_check import IndexChecker
from tests.damage import flipped
from tests.sync.chain.empty_changelogs import append_empty_changelogs
from tests.sync.conftest import Power, write_file
from tests.sync.history.index_matches import index_all

KEY = RUNS.key_of(1, Txg(HISTORY_FAN_OUT))


async def test_index_check_accepts_an_index_object_older_than_a_restored_changelog(
    power: Power,
) -> None:
    """A search reads the changelogs that the index object marks as unknown."""
    objects, damaged = power.store.objects, key_of(Txg(5))
    async with power.session("a", tasks=False) as session:
        write_file(session, b"x")
        await session.shipper.ship(anyway=True)
        await append_empty_changelogs(session, HISTORY_FAN_OUT)
        intact, objects[damaged] = objects[damaged], flipped(objects[damaged], -1)
        await index_all(session)
        opened = session.volume
        checker = IndexChecker(opened.store, opened.keyring, opened.uuid)
        objects[damaged] = intact
        index = history_index.decode(KEY, objects[KEY], opened.keyring)
        assert index.unknown
        assert await checker.fault(KEY) is None

        other = replace(index, uuid="00000000-0000-4000-8000-000000000000")
        objects[KEY] = history_index.encode(other, opened.keyring)
        assert "another filesystem" in str(await checker.fault(KEY))
        objects[KEY] = history_index.encode(replace(index, hash="00" * 32), opened.keyring)
        assert "differs" in str(await checker.fault(KEY))
