"""Failing DELETE requests: a later pass of garbage collection deletes the same objects."""

from collections import Counter
from collections.abc import Sequence

import pytest
from typing_extensions import override

from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.meta.tables import packs
from s3fs_meta.model import ObjectKey, PackState
from s3fs_meta.sync.session import Session
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import Power, remove_file, unmount, write_file

pytestmark = pytest.mark.thorough


class _InterruptedDeletions(FaultyStore):
    """A store in which one DELETE request fails after it has deleted half of the objects."""

    left = 0  # Counts DELETE requests up to the failing request; 0 if no request fails.

    @override
    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete the objects, or half of them."""
        self.left -= 1
        if self.left:
            await super().delete(keys)
        else:
            await super().delete(keys[: len(keys) // 2])
            raise StoreUnavailableError(keys[-1], 1, 0.0, "connection reset")


async def _make_garbage(power: Power) -> None:
    """Leave packs, images and changelogs that no retained txg needs."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        for number in range(1, 6):
            ino = write_file(session, bytes([number]) * 5000)
            await session.flush()
            remove_file(session, ino)
            await session.imager.make()
        await unmount(session)


def _require_counted(session: Session) -> None:
    """Require that no pack stays condemned, and that the total is the size of all stored packs."""
    rows = list(packs.iterate(session.db))
    assert all(row.state is PackState.STORED for row in rows)
    assert session.db.counters.stored_bytes == sum(row.object_bytes for row in rows)


@pytest.mark.parametrize("is_remounted", [False, True])
async def test_failed_deletions_are_repeated(
    power: Power, is_remounted: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """After a failure, garbage collection leaves the same objects as without the failure."""
    await _make_garbage(power)
    counts: dict[int, Counter[str]] = {}
    at, has_failed = 0, True
    while has_failed:
        at += 1
        copied = power.copy(tmp_path_factory.mktemp("copy"))
        store = _InterruptedDeletions(copied.store)
        async with copied.session("a", tasks=False, store=store) as session:
            store.left = at
            await session.reclaimer.run()
            has_failed = session.reclaimer.last_error != ""
            if not is_remounted:
                await session.reclaimer.reclaim_all()
                _require_counted(session)
            await unmount(session)
        async with copied.session("a", tasks=False) as session:
            await session.reclaimer.reclaim_all()
            _require_counted(session)
            assert (await session.reclaimer.plan()).total == 0
        counts[at] = Counter(key.partition("/")[0] for key in copied.store.objects)
        del counts[at]["changelog"]  # Each pass that deletes objects ships a txg.

    assert at > 4
    assert all(counts[one] == counts[at] for one in counts), counts
