"""Replay: applying changelogs up to a later txg, and its errors about damaged objects."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.errors import CorruptionError, FormatError, ObjectMissingError, S3fsError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectInfo
from s3fs_meta.sync.upload.bounds import DEFAULT_BOUNDS, UploadBounds
from s3fs_meta.sync.volume import OpenOptions
from tests.damage import flipped
from tests.rows import contents
from tests.sync.conftest import (
    TAKEOVER,
    Power,
    flushed,
    keys_of,
    read_file,
    remove_file,
    write_file,
)
from tests.sync.image.restoring import restorer_of

pytestmark = pytest.mark.thorough


async def a_week(
    power: Power, bounds: UploadBounds = DEFAULT_BOUNDS
) -> dict[int, dict[str, list[object]]]:
    """Ship six txgs; return the rows after each txg."""
    states: dict[int, dict[str, list[object]]] = {}
    frozen: dict[str, list[object]] = {}

    def at_cut(step: str) -> None:
        if step == "txg cut":
            frozen.update(contents(session.db.connection))

    async with power.session("a", tasks=False, bounds=bounds, hook=at_cut) as session:
        made = []
        for number in range(6):
            made.append(write_file(session, b"%d" % number * 900))
            session.db.commit()
            if number % 2:
                remove_file(session, made.pop(0))
            link = await flushed(session)
            states[link.txg] = dict(frozen)
        return states


async def restored(power: Power, path: Path, txg: int) -> dict[str, list[object]]:
    """Restore a txg from the bucket and return its rows."""
    await (await restorer_of(power)).restore(None, path, upto=Txg(txg))
    db = Database.open(path, Pragmas(), read_only=True)
    try:
        return contents(db.connection)
    finally:
        db.close()


async def test_every_txg_can_be_restored_exactly(power: Power, tmp_path: Path) -> None:
    """The restored rows, including the counters, match the rows at the end of the txg."""
    states = await a_week(power)
    for txg, expected in states.items():
        assert await restored(power, tmp_path / f"{txg}.db", txg) == expected


async def test_restore_up_to_a_missing_later_txg_ends_at_the_last_existing_txg(
    power: Power, tmp_path: Path
) -> None:
    """A restore accepts that the requested txg is lost, as after a restore of an older bucket."""
    states = await a_week(power)
    last = max(states)
    assert await restored(power, tmp_path / "meta.db", last + 50) == states[last]


async def test_restore_of_an_existing_txg_lists_no_changelogs(
    power: Power, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore lists no changelogs, because a listing may contain 120,000 names after a week."""
    states = await a_week(power)
    listed: list[str] = []
    original = power.store.list

    def recorded(prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        listed.append(prefix)
        return original(prefix, after=after)

    monkeypatch.setattr(power.store, "list", recorded)
    async with power.session("r", options=OpenOptions(read_only=True), tasks=False):
        restorer = await restorer_of(power)
    assert changelog_codec.PREFIX in listed
    listed.clear()
    await restorer.restore(None, tmp_path / "meta.db", upto=Txg(max(states)))
    assert changelog_codec.PREFIX not in listed


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing", "swapped", "doubled"])
async def test_mount_error_names_a_damaged_changelog(power: Power, damage: str) -> None:
    """A mount that needs a damaged changelog is refused, and the error names the changelog."""
    await a_week(power)
    first, second, third = keys_of(power, "changelog/")[2:5]
    objects = power.store.objects
    if damage == "flipped":
        objects[second] = flipped(objects[second], len(objects[second]) // 2)
    elif damage == "truncated":
        objects[second] = objects[second][:-7]
    elif damage == "missing":
        del objects[second]
    elif damage == "swapped":
        objects[second], objects[third] = objects[third], objects[second]
    else:
        objects[second] = objects[first]

    with pytest.raises(S3fsError) as caught:
        async with power.session("b", options=TAKEOVER):
            pass

    assert isinstance(caught.value, (CorruptionError, ObjectMissingError))
    assert second in str(caught.value)


@pytest.mark.parametrize("damage", ["flipped", "missing", "swapped"])
async def test_damaged_part_of_a_changelog_is_named_in_the_mount_error(
    power: Power, damage: str
) -> None:
    """If a part of a changelog is damaged, no change of the changelog is applied."""
    await a_week(power, UploadBounds(run_bytes=500))
    parts = keys_of(power, "changelog-part/")
    objects = power.store.objects
    if damage == "flipped":
        objects[parts[0]] = flipped(objects[parts[0]], -1)
    elif damage == "missing":
        del objects[parts[0]]
    else:
        objects[parts[0]] = objects[parts[1]]

    with pytest.raises((FormatError, ObjectMissingError), match=parts[0]):
        async with power.session("b", options=TAKEOVER):
            pass


async def test_mount_uses_an_older_image_if_the_newest_image_is_damaged(power: Power) -> None:
    """A mount reports a damaged image, and restores an older image without loss of files."""
    async with power.session("a", tasks=False) as session:
        first = write_file(session, b"first")
        head = await session.make_image()
        second = write_file(session, b"second")
        await session.flush()
    piece = ObjectKey(head.manifest_key.replace("manifest", "000000"))
    power.store.objects[piece] = b"rotten"

    async with power.session("b", options=TAKEOVER) as session:
        assert await read_file(session, first) == b"first"
        assert await read_file(session, second) == b"second"
        assert any("older image" in notice for notice in session.volume.notices)


async def test_changelog_cannot_be_decoded_under_another_object_key(power: Power) -> None:
    await a_week(power)
    async with power.session("r", options=OpenOptions(read_only=True), tasks=False) as session:
        keyring = session.volume.keyring
    one, two = keys_of(power, "changelog/")[:2]
    with pytest.raises(FormatError):
        changelog_codec.decode(one, power.store.objects[two], keyring)
