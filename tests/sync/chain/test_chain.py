"""The chain: finding, fetching and appending changelogs."""

from dataclasses import replace

import pytest

from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.changelog import Changelog, Kind
from s3fs_meta.codec.image import NO_HASH, content_hash
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, NewerFormatError, ObjectMissingError
from s3fs_meta.meta.tables import local_state
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import Link
from tests.damage import claim_newer
from tests.sync.conftest import Power

KEYRING = Keyring(None, bytes(32))
UUID = "01234567-89ab-cdef-0123-456789abcdef"
START = Link(Txg(0), NO_HASH, 0)


def fence(after: Link, nonce: str = "0" * 32, uuid: str = UUID) -> Changelog:
    """Return a fence record that follows a changelog."""
    return Changelog(
        kind=Kind.FENCE,
        txg=after.next_txg,
        epoch=Epoch(1),
        nonce=nonce,
        uuid=uuid,
        schema_version=1,
        created_ns=after.created_ns + 1,
        previous=after.hash,
    )


async def append(store: MemoryStore, changelog: Changelog) -> bytes:
    """Append a changelog to the chain in the bucket; return its bytes."""
    data = changelog_codec.encode(changelog, KEYRING)
    assert await chain.append(store, changelog.txg, data)
    return data


async def test_changelogs_of_a_chain_are_fetched_in_order() -> None:
    """After the last changelog of the chain, fetch_next() raises ObjectMissingError."""
    store, link = MemoryStore(), START
    for _ in range(3):
        await append(store, fence(link))
        link = (await chain.fetch_next(store, KEYRING, UUID, link)).link
    assert link == Link(Txg(3), link.hash, 3)
    assert await chain.numbers_from(store, KEYRING, Txg(2)) == [2, 3]
    assert await chain.numbers_from(store, KEYRING, Txg(0)) == [1, 2, 3]
    with pytest.raises(ObjectMissingError):
        await chain.fetch_next(store, KEYRING, UUID, link)


async def test_changelog_with_a_wrong_predecessor_is_refused() -> None:
    store = MemoryStore()
    await append(store, fence(START))
    other = replace(fence(START), previous="1" * 64)
    store.objects[changelog_codec.key_of(Txg(1))] = changelog_codec.encode(other, KEYRING)
    with pytest.raises(FormatError, match="records a different hash"):
        await chain.fetch_next(store, KEYRING, UUID, START)


async def test_changelog_of_another_filesystem_is_refused() -> None:
    store = MemoryStore()
    await append(store, fence(START, uuid=UUID.replace("0", "f")))
    with pytest.raises(FormatError, match="another filesystem"):
        await chain.fetch_next(store, KEYRING, UUID, START)


async def test_unknown_changelog_version_counts_as_damage_if_the_next_changelog_proves_it() -> None:
    """The next changelog proves by its hash that a version field was damaged after the upload."""
    store = MemoryStore()
    await append(store, fence(START))
    first = (await chain.fetch(store, KEYRING, UUID, Txg(1))).link
    await append(store, fence(first))
    key = changelog_codec.key_of(Txg(1))
    store.objects[key] = claim_newer(store.objects[key])

    with pytest.raises(FormatError, match="the next changelog records a different hash") as caught:
        await chain.fetch(store, KEYRING, UUID, Txg(1))

    assert not isinstance(caught.value, NewerFormatError)


@pytest.mark.parametrize("following", ["follows", "missing", "damaged", "of another filesystem"])
async def test_unknown_changelog_version_counts_as_newer_unless_damage_is_proven(
    following: str,
) -> None:
    """A newer program may write only some of the changelogs in a newer format."""
    store = MemoryStore()
    data = claim_newer(changelog_codec.encode(fence(START), KEYRING))
    store.objects[changelog_codec.key_of(Txg(1))] = data
    if following != "missing":
        uuid = UUID.replace("0", "f") if following == "of another filesystem" else UUID
        link = Link(Txg(1), content_hash(data) if following == "follows" else NO_HASH, 1)
        await append(store, fence(link, uuid=uuid))
    if following == "damaged":
        store.objects[changelog_codec.key_of(Txg(2))] = b"noise"

    with pytest.raises(NewerFormatError):
        await chain.fetch(store, KEYRING, UUID, Txg(1))


async def test_own_changelog_is_recognised_by_its_bytes_after_a_lost_response() -> None:
    """If the response to an append is lost, an object with the sent bytes proves success."""
    store = MemoryStore()
    data = await append(store, fence(START))
    assert await chain.append(store, Txg(1), data)
    other = changelog_codec.encode(fence(START, nonce="1" * 32), KEYRING)
    assert not await chain.append(store, Txg(1), other)
    assert store.objects[changelog_codec.key_of(Txg(1))] == data


async def test_foreign_objects_with_changelog_keys_are_ignored() -> None:
    """A user may store other objects under the prefix of the changelogs."""
    store = MemoryStore()
    await append(store, fence(START))
    await store.put(ObjectKey("changelog/readme"), b"hello")
    await store.put(ObjectKey("changelog/000000000002.bak"), b"hello")
    assert await chain.numbers_from(store, KEYRING, Txg(0)) == [1]


async def test_chain_position_is_stored_in_the_local_state(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        link = Link(Txg(9), content_hash(b"nine"), 99)
        session.db.begin_local()
        chain.record(session.db, link)
        session.db.commit()
        assert chain.recorded(session.db) == link
        session.db.begin_local()
        local_state.put(session.db, "chain", '{"txg": "nine"}')
        session.db.commit()
        with pytest.raises(FormatError):
            chain.recorded(session.db)
