"""The check that index objects agree with their changelogs."""

from dataclasses import replace

import pytest

from s3fs_meta.codec import history_index
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.codec.history_index import RUNS
from s3fs_meta.limits import HISTORY_FAN_OUT
from s3fs_meta.model import Txg
from s3fs_meta.sync.history.index.index_check import IndexChecker
from s3fs_meta.sync.session import Session
from tests.damage import flipped
from tests.sync.chain.empty_changelogs import append_empty_changelogs
from tests.sync.conftest import Power, write_file
from tests.sync.history.index_matches import index_all

pytestmark = pytest.mark.thorough

KEY = RUNS.key_of(1, Txg(HISTORY_FAN_OUT))


async def test_index_check_accepts_an_index_object_older_than_a_restored_changelog(
    power: Power,
) -> None:
    """The index object marks a changelog as unknown, so a search reads the changelog itself."""
    objects, damaged = power.store.objects, key_of(Txg(5))
    async with power.session("a", tasks=False) as session:
        write_file(session, b"x")
        await session.shipper.ship(anyway=True)
        await append_empty_changelogs(session, HISTORY_FAN_OUT)
        intact, objects[damaged] = objects[damaged], flipped(objects[damaged], -1)
        await index_all(session)
        opened = session.volume
        objects[damaged] = intact
        index = history_index.decode(KEY, objects[KEY], opened.keyring)
        assert index.unknown
        assert await fault(session) is None

        other = replace(index, uuid="00000000-0000-4000-8000-000000000000")
        objects[KEY] = history_index.encode(other, opened.keyring)
        assert "another filesystem" in str(await fault(session))
        objects[KEY] = history_index.encode(replace(index, hash="00" * 32), opened.keyring)
        assert "another history" in str(await fault(session))


async def fault(session: Session) -> str | None:
    """Return the fault of the first index object."""
    opened = session.volume
    return await IndexChecker(opened.store, opened.keyring, opened.uuid).fault(KEY)


async def test_index_check_finds_another_history_even_if_lower_index_objects_are_missing(
    power: Power,
) -> None:
    """An index object of another history is found even if the objects below it are missing."""
    objects, above = power.store.objects, RUNS.key_of(2, Txg(HISTORY_FAN_OUT**2))
    async with power.session("a", tasks=False) as session:
        await append_empty_changelogs(session, HISTORY_FAN_OUT**2)
        await index_all(session)
        opened = session.volume
        index = history_index.decode(above, objects[above], opened.keyring)
        for key in [key for key in objects if key.startswith(RUNS.prefix_of(1))]:
            del objects[key]
        checker = IndexChecker(opened.store, opened.keyring, opened.uuid)
        assert await checker.fault(above) is None
        objects[above] = history_index.encode(replace(index, hash="00" * 32), opened.keyring)
        checker = IndexChecker(opened.store, opened.keyring, opened.uuid)
        assert "another history" in str(await checker.fault(above))
