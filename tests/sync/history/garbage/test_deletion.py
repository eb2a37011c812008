"""DELETE requests of which the store refuses a part."""

from collections.abc import Sequence

import pytest
from typing_extensions import override

from s3fs_meta.errors import CredentialsError, StoreAccessError
from s3fs_meta.limits import DELETE_BATCH_KEYS, DELETES_REFUSED_MAX
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectInfo
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.history.garbage.deletion import Deleter
from s3fs_meta.sync.history.garbage.found_garbage import Garbage
from s3fs_meta.testing.faulty_store import FaultyStore

KEYS = [ObjectKey(f"pack/00/1-{number:032x}") for number in range(DELETE_BATCH_KEYS + 3)]


class _Policy(FaultyStore):
    """A store that denies the deletion of some objects, and deletes the others."""

    denied: frozenset[ObjectKey] = frozenset()

    @override
    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete the objects, or fail if one of them is denied."""
        await super().delete([key for key in keys if key not in self.denied])
        for key in keys:
            if key in self.denied:
                raise StoreAccessError(key, "AccessDenied", "check the policy")


async def test_refused_objects_are_found_and_come_last_in_the_next_request() -> None:
    store = _Policy(MemoryStore())
    deleter = Deleter(store)
    store.denied = frozenset({KEYS[0], KEYS[DELETE_BATCH_KEYS]})
    counts: list[int] = []

    assert await deleter.delete(KEYS, counts.append) == store.denied
    assert sum(counts) == len(KEYS) - 2
    assert deleter.failure() is not None

    store.denied = frozenset()
    assert await deleter.delete(KEYS[:2], counts.append) == set()
    assert store.calls[-1].key == KEYS[1]
    assert await deleter.delete([KEYS[DELETE_BATCH_KEYS]], counts.append) == set()
    assert deleter.failure() is None


@pytest.mark.parametrize("denied", [20, DELETE_BATCH_KEYS + 3])
async def test_many_refused_objects_do_not_prevent_the_deletion_of_others(
    denied: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The number of requests is limited even if the store refuses every deletion."""
    store = _Policy(MemoryStore())
    deleter = Deleter(store)
    store.denied = frozenset(KEYS[:denied])

    left = await deleter.delete(KEYS, lambda _count: None)

    assert left >= store.denied
    assert left.isdisjoint(KEYS[max(denied, DELETE_BATCH_KEYS) :])
    assert deleter.refused.keys() == left
    assert len(store.calls) < 100
    assert len(caplog.messages) == DELETES_REFUSED_MAX + 1
    await deleter.delete(KEYS, lambda _count: None)
    assert len(caplog.messages) <= 2 * (DELETES_REFUSED_MAX + 1)


class _StrictPolicy(_Policy):
    """A store that deletes nothing if it denies the deletion of one object of a request."""

    @override
    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete the objects, or nothing if one of them is denied."""
        for key in self.denied.intersection(keys):
            raise StoreAccessError(key, "AccessDenied", "check the policy")
        await super().delete(keys)


async def test_objects_beside_many_refused_objects_are_deleted_after_some_attempts() -> None:
    """Each attempt looks for refused objects among those that no attempt has tried alone."""
    store = _StrictPolicy(MemoryStore())
    deleter = Deleter(store)
    store.denied = frozenset(KEYS[:: len(KEYS) // (4 * DELETES_REFUSED_MAX)])
    left = set(KEYS)
    for _ in range(6):
        left = await deleter.delete(sorted(left), lambda _count: None)
    assert left == store.denied


async def test_objects_are_not_marked_as_refused_if_the_credentials_are_missing() -> None:
    store = FaultyStore(MemoryStore())
    store.fail("delete", CredentialsError("any", "none", "log in"))
    deleter = Deleter(store)
    with pytest.raises(CredentialsError):
        await deleter.delete(KEYS, print)
    assert deleter.failure() is None


def test_refused_objects_do_not_count_as_deleted_garbage() -> None:
    objects = [ObjectInfo(key, 1) for key in KEYS[:2]]
    found = Garbage(Txg(1), [], [], objects, [], objects.copy(), [], [], set())
    found.exclude({KEYS[0]})
    assert found.counts["manifests"] == found.counts["changelogs"] == (1, 1)
