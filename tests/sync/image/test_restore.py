"""The restore of an image from the bucket."""

import errno
import gc
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import apsw
import pytest
import trio
from typing_extensions import override

from s3fs_meta.bucket_errors import NoImageError
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec.image import Manifest, ManifestRef, Piece, parse_piece_key
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import (
    FETCHES_MAX,
    IMAGE_PIECE_BYTES,
    IMAGE_PIECES_MAX,
    KIB,
    LEVEL_FAN_OUT,
    MIB,
)
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.contract import Fetched
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.image import pieces as image_pieces
from s3fs_meta.sync.image import restore
from s3fs_meta.sync.image.restore import Restorer, allocate, copy_database, write_piece
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.damage import claim_newer, flipped
from tests.sync.chain.empty_changelogs import append_empty_changelogs
from tests.sync.conftest import Power, keys_of, read_file, write_file
from tests.sync.image.restoring import KEY, PLAIN, PREFIX, image_of, restored, restorer_of
from tests.sync.kept import forget


async def test_image_pieces_are_fetched_by_a_fixed_number_of_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even for a long manifest, only a few image pieces are in memory at the same time."""
    monkeypatch.setattr(restore, "IMAGE_PIECE_BYTES", 4096)
    monkeypatch.setattr(image_codec, "IMAGE_PIECE_BYTES", 4096)
    most = 0

    class Counting(MemoryStore):
        @override
        async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
            nonlocal most
            most = max(most, trio.lowlevel.current_statistics().tasks_living - before)
            return await super().get(key, max_bytes)

    store = Counting()
    content = bytes(4096)
    keys = [image_codec.piece_key(PREFIX, number) for number in range(500)]
    pieces = [Piece(key, len(content), image_codec.content_hash(content)) for key in keys]
    store.objects.update({key: image_codec.encode_piece(key, content, PLAIN) for key in keys})
    del store.objects[keys[-1]]
    store.objects[KEY] = image_codec.encode(image_of(*pieces), KEY, PLAIN)
    before = trio.lowlevel.current_statistics().tasks_living

    with pytest.raises(NoImageError, match=keys[-1]):
        await restored(store, tmp_path / "meta.db")

    assert most <= FETCHES_MAX + 1


async def test_manifest_with_a_short_piece_before_the_last_piece_is_refused(tmp_path: Path) -> None:
    """A short piece before the last piece would make the database larger than declared."""
    store = MemoryStore()
    one = Piece(image_codec.piece_key(PREFIX, 0), 4096, image_codec.NO_HASH)
    two = Piece(image_codec.piece_key(PREFIX, 1), 4096, image_codec.NO_HASH)
    store.objects[KEY] = image_codec.encode(image_of(one, two), KEY, PLAIN)

    with pytest.raises(FormatError, match="piece 0 is not full: 4096 bytes"):
        await restored(store, tmp_path / "meta.db")


# This program restores from a hostile manifest whose object has only 4 KiB.
# The test measures the memory of a separate process.
_LARGEST = """
import errno, sys, trio
from pathlib import Path
from s3fs_meta.errors import S3fsError
from s3fs_meta.codec import (image as image_codec)
from s3fs_meta.objects.memory import (MemoryStore)
from tests.sync.kept import forget
from tests.sync.image.restoring import KEY, restored

async def main():
    store = MemoryStore()
    store.objects[KEY] = sys.stdin.buffer.read()
    try:
        await restored(store, Path(sys.argv[1]))
    except (OSError, S3fsError) as exc:  # The first piece is missing, or the disk is full.
        assert not isinstance(exc, OSError) or exc.errno == errno.ENOSPC, exc
        print([line.split()[1] for line in open("/proc/self/status") if "VmHWM" in line][0])

trio.run(main)
"""


@pytest.mark.slow
def test_restore_of_the_largest_manifest_uses_limited_memory(tmp_path: Path) -> None:
    """A manifest of maximum length lists missing pieces for a database of 2 TiB."""
    keys = (image_codec.piece_key(PREFIX, number) for number in range(IMAGE_PIECES_MAX))
    pieces = [Piece(key, IMAGE_PIECE_BYTES, image_codec.NO_HASH) for key in keys]
    hostile = image_codec.encode(image_of(*pieces), KEY, PLAIN)

    ended = subprocess.run(
        [sys.executable, "-c", _LARGEST, tmp_path / "meta.db"],
        input=hostile,
        capture_output=True,
        check=True,
    )

    assert 10 * MIB < int(ended.stdout) * KIB < 150 * MIB


async def test_manifest_that_lists_missing_image_pieces_is_ignored(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest declares a database larger than the disk, so an older image is used."""
    async with power.session("a") as session:
        ino = write_file(session, b"hello")
        await session.make_image()
        await session.close()
    keyring = (await power.keys()).keyring
    manifest = max(key for key in power.store.objects if key.endswith("/manifest"))
    image = image_codec.decode(manifest, power.store.objects[manifest], keyring)
    prefix = image_codec.image_of(manifest)
    keys = [image_codec.piece_key(prefix, number) for number in range(100)]
    hostile = replace(
        image,
        pieces=tuple(Piece(key, IMAGE_PIECE_BYTES, image_codec.NO_HASH) for key in keys),
        database_bytes=100 * IMAGE_PIECE_BYTES,
    )
    power.store.objects[manifest] = image_codec.encode(hostile, manifest, keyring)
    monkeypatch.setattr(restore, "free_bytes", lambda path: 50 * IMAGE_PIECE_BYTES)

    async with power.session("b") as session:
        assert await read_file(session, ino) == b"hello"
        assert any("older image" in notice for notice in session.volume.notices)
        await session.close()


async def test_newer_image_that_the_lease_does_not_refer_to_is_ignored(power: Power) -> None:
    """An object of a newer version at the key of an image must not prevent a mount."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"hello")
        head = await session.make_image()
        await session.close()
    data = power.store.objects[head.manifest_key]
    keys = [image_codec.manifest_key(Txg(txg), Epoch(1), b"foreign!") for txg in (1, 1000)]
    for key in keys:
        power.store.objects[key] = claim_newer(data)
    power.store.objects[head.manifest_key] = b"damaged"

    async with power.session("b", tasks=False) as session:
        assert await read_file(session, ino) == b"hello"
        assert any("does not name was ignored" in notice for notice in session.volume.notices)
        await session.close()

    named = ManifestRef(keys[1], image_codec.content_hash(power.store.objects[keys[1]]))
    restorer = await restorer_of(power)
    with pytest.raises(NewerFormatError):
        await restorer.restore(named, power.home / "restored.db")


async def test_restore_reports_a_newer_version_if_no_other_image_is_usable(power: Power) -> None:
    """If the only image has a newer version, the error advises an upgrade."""
    for key in [key for key in power.store.objects if key.endswith("/manifest")]:
        power.store.objects[key] = claim_newer(power.store.objects[key])

    restorer = await restorer_of(power)
    with pytest.raises(NewerFormatError):
        await restorer.restore(None, power.home / "restored.db")


async def test_image_piece_with_a_newer_version_than_its_manifest_counts_as_damaged(
    power: Power,
) -> None:
    """A piece with a newer version than its manifest is damaged."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"hello")
        head = await session.make_image()
        await session.close()
    key = image_codec.piece_key(image_codec.image_of(head.manifest_key), 0)
    power.store.objects[key] = claim_newer(power.store.objects[key])

    async with power.session("b", tasks=False) as session:
        assert await read_file(session, ino) == b"hello"
        assert any(
            "the envelope has an unknown version" in notice for notice in session.volume.notices
        )


async def test_error_of_a_failed_restore_does_not_keep_the_manifest_in_memory(
    power: Power, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that is kept in a log must not keep a large manifest in memory."""
    before = manifests_in_memory()
    store = FaultyStore(power.store)
    for key in pieces_of(power):
        power.store.objects[key] = b"damaged"  # type: ignore[index]
    restorer = await restorer_of(power, store)

    with pytest.raises(FormatError) as refused:
        await restorer.restore(None, power.home / "meta.db")

    assert caplog.records
    assert "damaged" in refused.value.message
    assert [call.key for call in store.calls if call.key.endswith("/manifest")]
    assert [one for one in manifests_in_memory() if not any(one is old for old in before)] == []


def manifests_in_memory() -> list[Manifest]:
    """Return all manifests that an object keeps in memory."""
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is Manifest]


async def test_failed_restore_can_be_repeated_once_the_objects_are_available(power: Power) -> None:
    """A restore remembers failed images, but the next restore tries them a second time."""
    restorer = await restorer_of(power)
    complete = dict(power.store.objects)
    for key in pieces_of(power):
        del power.store.objects[key]  # type: ignore[arg-type]
    with pytest.raises(NoImageError):
        await restorer.restore(None, power.home / "restored.db")

    power.store.objects.update(complete)

    assert (await restorer.restore(None, power.home / "restored.db")).txg == 0


def pieces_of(power: Power) -> list[str]:
    """Return the keys of all image pieces in the store."""
    return [key for key in power.store.objects if parse_piece_key(key) is not None]


async def test_deleted_image_of_an_outdated_lease_causes_no_notice(
    power: Power, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A follower may have read the lease before the writer deleted its image."""
    await power.retain(0)
    async with power.session(tasks=False) as session:
        write_file(session, b"1")
        await session.make_image()
        head = session.volume.keeper.lease.head
        assert head is not None
        await forget(session)
        assert head.manifest_key not in power.store.objects
        restorer = await restorer_of(power)
        caplog.clear()

        link = await restorer.restore(head.manifest, tmp_path / "restored.db")

        assert link.txg == session.link.txg
        assert restorer.notices == []
        assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_restore_names_a_damaged_image_piece_and_leaves_no_database(power: Power) -> None:
    """After a damaged image piece is replaced by an intact copy, the mount succeeds."""
    [key] = pieces_of(power)
    good = power.store.objects[key]  # type: ignore[index]
    power.store.objects[key] = flipped(good, -1)  # type: ignore[index]

    with pytest.raises(FormatError, match=key):
        async with power.session("a"):
            pass
    # The failed restore has freed the disk space of the database.
    assert not list((power.home / "a").glob("meta.db*"))

    power.store.objects[key] = good  # type: ignore[index]
    async with power.session("a") as session:
        assert session.status.writable


async def test_error_about_a_missing_image_piece_advises_fsck(power: Power) -> None:
    """The error of a failed restore names the fsck commands that may repair the bucket."""
    [key] = pieces_of(power)
    del power.store.objects[key]  # type: ignore[arg-type]

    with pytest.raises(NoImageError, match=f"{key}.*fsck -y --publish-local .* fsck --rebuild"):
        async with power.session("a"):
            pass


async def test_interrupted_restore_starts_from_the_beginning(power: Power, tmp_path: Path) -> None:
    """A killed restore leaves a file, which the next restore overwrites."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "meta.db.restoring").write_bytes(b"half")

    async with power.session("a") as session:
        assert session.status.writable

    assert not (tmp_path / "a" / "meta.db.restoring").exists()


async def put_hostile_image(power: Power, tmp_path: Path, statement: str) -> None:
    """Change the schema of the newest image with an SQL statement, and publish this image."""
    async with power.session("a", tasks=False) as session:
        opened = session.volume
        write_file(session, b"content")
        head = await session.make_image()
        assert head is not None
        path = tmp_path / "hostile.db"
        await (await restorer_of(power)).restore(head.manifest, path)
        connection = apsw.Connection(str(path))
        connection.execute(statement)
        connection.close()
        image_copy.finish(path, (), ())
        image = image_pieces.new_image(head.txg, opened.keeper.epoch)
        pieces = await image_pieces.put_pieces(power.store, opened.keyring, image, path)
        chained = await chain.fetch(power.store, opened.keyring, opened.superblock.uuid, head.txg)
        hostile, data = await image_pieces.describe(
            opened.keyring,
            image,
            path,
            pieces,
            created_ns=1,
            changelog=chained.link.hash,
        )
        await power.store.create(hostile.manifest_key, data)
        await opened.keeper.move_head(hostile)
        await session.close()


@pytest.mark.parametrize("column", ["x'61', 300", "zeroblob(2000000), 1"])
async def test_unencrypted_image_with_an_oversized_value_is_ignored(
    power: Power, tmp_path: Path, column: str
) -> None:
    """An image with an oversized value is ignored, unless encryption proves who wrote the image."""
    await put_hostile_image(power, tmp_path, f"INSERT INTO dentries VALUES (1, 300, {column})")

    async with power.session("b", tasks=False) as session:
        ignored = any("a value of more than" in notice for notice in session.volume.notices)
        assert ignored == ("zeroblob" in column and not power.encrypted)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER x AFTER INSERT ON inodes BEGIN DELETE FROM inodes WHERE ino = new.ino; END",
        "CREATE UNIQUE INDEX x ON inodes (mode)",
    ],
    ids=["trigger", "index"],
)
async def test_image_with_a_changed_schema_is_not_used(
    power: Power, tmp_path: Path, statement: str
) -> None:
    """The restore uses an older image and later changelogs, without the forged schema."""
    await put_hostile_image(power, tmp_path, statement)

    async with power.session("b", tasks=False) as session:
        assert any("is unusable" in notice for notice in session.volume.notices)
        ino = write_file(session, b"more")
        write_file(session, b"and more")
        assert await read_file(session, ino) == b"more"
        found = session.db.all("SELECT name FROM sqlite_schema WHERE name = 'x'")
        assert found == []


def test_error_about_a_full_disk_names_the_directory_and_a_remedy(tmp_path: Path) -> None:
    """The error about a full disk is the same before and during a restore."""
    advice = "delete other files there, or choose a directory on another disk with --cachedir"

    with pytest.raises(OSError, match=advice) as before:
        allocate(tmp_path / "meta.db", 1 << 60)
    with pytest.raises(OSError, match=advice) as during:
        write_piece(Path("/dev/full"), 0, b"x" * 4096)
    (tmp_path / "earlier").write_bytes(b"x" * 4096)
    with pytest.raises(OSError, match=advice) as copying:
        copy_database(tmp_path / "earlier", Path("/dev/full"))

    assert (before.value.errno, before.value.filename) == (errno.ENOSPC, str(tmp_path))
    assert (during.value.errno, during.value.filename) == (errno.ENOSPC, "/dev")
    assert (copying.value.errno, copying.value.filename) == (errno.ENOSPC, "/dev")


async def test_manifest_of_each_image_before_a_damaged_image_is_read_at_most_twice(
    power: Power,
) -> None:
    """A restore that begins with an older image needs the damaged image for later txgs."""
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False) as session:
        for _ in range(6):
            await append_empty_changelogs(session, 2 * LEVEL_FAN_OUT)
            session.db.counters.begin_txg(session.link.next_txg)
            await session.leveler.make_due()
            await session.publish_as_txg()
        head = session.volume.keeper.lease.head
        assert head is not None
        image = image_codec.image_of(head.manifest_key)
        for key in keys_of(power, "image/"):
            if image_codec.parse_piece_key(key) and image_codec.image_of(key) == image:
                del power.store.objects[key]

        restorer = await restorer_of(power, store)
        with pytest.raises(NoImageError, match=str(image)):
            await restorer.restore(head.manifest, power.home / "restored.db")
    reads = Counter(call.key for call in store.calls if call.key.endswith("/manifest"))
    assert len(reads) == 7
    assert max(reads.values()) <= 2


async def test_restore_follows_a_limited_number_of_images_from_one_image(power: Power) -> None:
    """Forged images could form an endless chain, so an older image is tried after a limit."""
    async with power.session("a", tasks=False) as session:
        first = session.volume.keeper.lease.head
        assert first is not None
        for _ in range(3):
            await session.publish_as_txg()
        keyring, uuid, link = session.volume.keyring, session.volume.uuid, session.link
    ref, target = first.manifest, power.home / "restored.db"

    notices = []
    for links_max in (2, 3):
        restorer = Restorer(power.store, keyring, uuid, no_progress, links_max=links_max)
        assert await restorer.restore(ref, target) == link
        target.unlink()
        notices.append(" ".join(restorer.notices))

    assert "more than 2 images follow one another" in notices[0]
    assert notices[1] == ""
