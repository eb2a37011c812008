"""Salvage: using the intact pieces of an image that cannot be restored completely."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec.image import Piece
from s3fs_meta.errors import NewerFormatError, StoreUnavailableError
from s3fs_meta.limits import SALVAGE_IMAGES_MAX
from s3fs_meta.meta.db.schema import SCHEMA_VERSION
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.image import restore
from s3fs_meta.sync.image.salvage import SalvagedImage, Salvager
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.damage import claim_newer
from tests.sync.image.restoring import KEY, PLAIN, PREFIX, UUID, image_of

PIECE = 4096
CONTENTS = [bytes([number]) * PIECE for number in range(1, 5)]
OLDER = image_codec.image_prefix(Txg(1), Epoch(1), b"older ab")
NEWER = image_codec.image_prefix(Txg(2), Epoch(1), b"newer ab")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """Return a store with one image that is split into small pieces."""
    for module in (restore, image_codec):
        monkeypatch.setattr(module, "IMAGE_PIECE_BYTES", PIECE)
    made = MemoryStore()
    put(made, PREFIX, KEY)
    return made


def put(
    store: MemoryStore,
    prefix: str,
    key: ObjectKey,
    txg: int = 1,
    contents: Sequence[bytes] = CONTENTS,
) -> None:
    """Store an image with pieces that no other image has."""
    pieces = []
    for number, content in enumerate(contents):
        name = put_piece(store, prefix, number, content)
        pieces.append(Piece(name, PIECE, image_codec.content_hash(content)))
    store.objects[key] = image_codec.encode(replace(image_of(*pieces), txg=Txg(txg)), key, PLAIN)


def put_piece(store: MemoryStore, prefix: str, number: int, content: bytes) -> ObjectKey:
    """Store one image piece, and return its key."""
    name = image_codec.piece_key(prefix, number)
    store.objects[name] = image_codec.encode_piece(name, content, PLAIN)
    return name


async def laid_out(
    store: MemoryStore | FaultyStore, path: Path, *, images_max: int = SALVAGE_IMAGES_MAX
) -> list[SalvagedImage]:
    """Write the database of every image that has its first piece; return the salvaged images."""
    salvager = Salvager(store, PLAIN, UUID, no_progress, images_max=images_max)
    async with aclosing(salvager.lay_out(path)) as images:
        return [remains async for remains in images]


async def test_intact_image_pieces_are_written_at_their_offsets(
    store: MemoryStore, tmp_path: Path
) -> None:
    """Intact pieces are at their offsets in the salvaged database, and missing pieces are zeros."""
    del store.objects[image_codec.piece_key(PREFIX, 2)]
    path = tmp_path / "damaged.db"
    [remains] = await laid_out(store, path)
    assert (remains.key, remains.pieces, remains.missing) == (KEY, 4, 1)
    assert path.read_bytes() == CONTENTS[0] + CONTENTS[1] + bytes(PIECE) + CONTENTS[3]


async def test_image_without_its_first_piece_is_skipped(store: MemoryStore, tmp_path: Path) -> None:
    """The first piece contains the schema, so an image without it cannot be salvaged."""
    store.objects[image_codec.piece_key(PREFIX, 0)] = b"noise"
    assert await laid_out(store, tmp_path / "damaged.db") == []


async def test_missing_piece_is_replaced_by_an_equal_piece_of_another_image(
    store: MemoryStore, tmp_path: Path
) -> None:
    """A missing piece is found by its content hash among the pieces of other images."""
    other = PREFIX[:-1] + ("0" if PREFIX[-1] != "0" else "1")
    put(store, other, ObjectKey(f"{other}/manifest"))
    del store.objects[image_codec.piece_key(PREFIX, 0)]
    del store.objects[image_codec.piece_key(other, 3)]
    path = tmp_path / "damaged.db"
    found = await laid_out(store, path)
    assert [remains.missing for remains in found] == [0, 0]
    assert path.read_bytes() == b"".join(CONTENTS)


async def put_both(store: MemoryStore) -> tuple[ObjectKey, ObjectKey]:
    """Store two images that share no pieces; return the keys of their manifests."""
    store.objects.clear()
    older, newer = ObjectKey(f"{OLDER}/manifest"), ObjectKey(f"{NEWER}/manifest")
    for txg, prefix, key in ((1, OLDER, older), (2, NEWER, newer)):
        contents = [bytes([txg, number]) * (PIECE // 2) for number in range(20)]
        put(store, prefix, key, txg, contents)
    return older, newer


async def test_newest_image_with_few_lost_pieces_is_tried_first(
    store: MemoryStore, tmp_path: Path
) -> None:
    """A newer image with few lost pieces is more valuable than an older complete image."""
    older, newer = await put_both(store)
    for number in (3, 7):
        del store.objects[image_codec.piece_key(NEWER, number)]
    assert [one.key for one in await laid_out(store, tmp_path / "damaged.db")] == [newer, older]


async def test_image_that_lost_most_pieces_is_tried_last(
    store: MemoryStore, tmp_path: Path
) -> None:
    """A complete older image is more valuable than a newer image without most of its pieces."""
    older, newer = await put_both(store)
    for number in range(2, 20):
        del store.objects[image_codec.piece_key(NEWER, number)]
    path = tmp_path / "damaged.db"
    found = await laid_out(store, path)
    assert [(one.key, one.missing) for one in found] == [(older, 0), (newer, 18)]
    assert path.read_bytes()[: 2 * PIECE + 1][-1:] == b"\0"


async def test_salvage_reads_a_limited_number_of_images(store: MemoryStore, tmp_path: Path) -> None:
    """A hostile bucket may contain any number of images, so salvage reads a limited number."""
    _older, newer = await put_both(store)
    found = await laid_out(store, tmp_path / "damaged.db", images_max=1)
    assert [one.key for one in found] == [newer]


async def test_unavailable_store_is_not_treated_as_a_damaged_image(
    store: MemoryStore, tmp_path: Path
) -> None:
    """An outage must not make fsck rebuild the filesystem without names."""
    faulty = FaultyStore(store)
    faulty.fail("get", StoreUnavailableError("image", 1, 0.0, "away"))
    with pytest.raises(StoreUnavailableError):
        await laid_out(faulty, tmp_path / "damaged.db")


@pytest.mark.parametrize("is_empty", [False, True])
async def test_no_disk_space_is_reserved_for_an_image_without_its_last_piece(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_empty: bool
) -> None:
    """A manifest may declare any size, so no space is reserved unless the last piece exists."""
    monkeypatch.setattr(restore, "free_bytes", lambda _path: 0)
    with pytest.raises(OSError, match="are free"):
        await laid_out(store, tmp_path / "damaged.db")
    last = image_codec.piece_key(PREFIX, 3)
    del store.objects[last]
    if is_empty:
        store.objects[last] = b""
    assert await laid_out(store, tmp_path / "damaged.db") == []


def header(pieces: int) -> bytes:
    """Return a first image piece whose header declares a database of *pieces* pages."""
    magic = b"SQLite format 3\0" + PIECE.to_bytes(2, "big")
    return (magic + bytes(10) + pieces.to_bytes(4, "big")).ljust(PIECE, b"\1")


async def test_image_pieces_without_a_manifest_are_placed_by_their_keys(
    store: MemoryStore, tmp_path: Path
) -> None:
    """At each position the newest piece is used, and the first piece contains the image's size."""
    store.objects.clear()
    old = [header(4), *CONTENTS[1:], b"left over" * 9]
    for number, content in enumerate(old):
        put_piece(store, OLDER, number, content)
    put_piece(store, NEWER, 2, CONTENTS[0])
    path = tmp_path / "damaged.db"
    async with aclosing(Salvager(store, PLAIN, UUID, no_progress).lay_out(path)) as images:
        seen = [(remains, path.read_bytes()) async for remains in images]
    newer, older = seen
    assert newer[0] == SalvagedImage(ObjectKey(f"{NEWER}/manifest"), Txg(2), 4, 0, listed=False)
    assert newer[1] == old[0] + old[1] + CONTENTS[0] + old[3]
    assert older[0].key == f"{OLDER}/manifest"
    assert older[1] == b"".join(old[:4])


@pytest.mark.parametrize("lost", ["missing", "damaged", "short", "first"])
async def test_image_pieces_without_a_manifest_are_used_only_if_complete(
    store: MemoryStore, tmp_path: Path, lost: str
) -> None:
    """Without a manifest, no object lists the pieces, so an image with a gap is not used."""
    store.objects.clear()
    for number, content in enumerate([header(4), *CONTENTS[1:]]):
        put_piece(store, OLDER, number, content)
    if lost == "missing":
        del store.objects[image_codec.piece_key(OLDER, 3)]
    elif lost == "damaged":
        store.objects[image_codec.piece_key(OLDER, 3)] = b"noise"
    elif lost == "short":
        put_piece(store, OLDER, 3, b"short")
    else:
        put_piece(store, OLDER, 0, CONTENTS[0])
    assert await laid_out(store, tmp_path / "damaged.db") == []


async def test_image_with_a_manifest_is_preferred_unless_most_pieces_are_lost(
    store: MemoryStore, tmp_path: Path
) -> None:
    """A newer image without a manifest precedes an older image that lost most of its pieces."""
    older, newer = await put_both(store)
    del store.objects[newer]
    for number, content in enumerate([header(20), *[CONTENTS[1]] * 19]):
        put_piece(store, NEWER, number, content)
    found = await laid_out(store, tmp_path / "damaged.db")
    assert [one.key for one in found] == [older, newer]
    for number in range(2, 20):
        del store.objects[image_codec.piece_key(OLDER, number)]
    found = await laid_out(store, tmp_path / "damaged.db")
    assert [one.key for one in found] == [newer, older]


async def test_image_piece_with_a_newer_version_than_its_manifest_counts_as_lost(
    store: MemoryStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An image piece of a newer version than its manifest does not belong to the image."""
    key = image_codec.piece_key(PREFIX, 2)
    store.objects[key] = claim_newer(store.objects[key])
    [remains] = await laid_out(store, tmp_path / "damaged.db")
    assert (remains.key, remains.pieces, remains.missing) == (KEY, 4, 1)
    assert key in caplog.text


async def test_unauthenticated_manifest_of_a_newer_version_counts_as_lost(
    store: MemoryStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The pieces are still placed by their keys if the manifest is not authentic."""
    put_piece(store, PREFIX, 0, header(4))
    store.objects[KEY] = claim_newer(store.objects[KEY])
    [remains] = await laid_out(store, tmp_path / "damaged.db")
    assert remains == SalvagedImage(KEY, Txg(1), 4, 0, listed=False)
    assert f"{KEY}: the envelope has an unknown version" in caplog.text


async def test_image_is_not_used_if_all_its_objects_have_a_newer_version(
    store: MemoryStore, tmp_path: Path
) -> None:
    """An image whose objects all have a newer version is skipped, and its version is reported."""
    path = tmp_path / "damaged.db"
    salvager = Salvager(store, PLAIN, UUID, no_progress)
    put(store, OLDER, ObjectKey(f"{OLDER}/manifest"))
    for key in [key for key in store.objects if key.startswith(OLDER)]:
        store.objects[key] = claim_newer(store.objects[key])
    async with aclosing(salvager.lay_out(path)) as images:
        assert [remains.key async for remains in images] == [KEY]
    assert salvager.newer is not None
    assert salvager.newer.key.startswith(OLDER)


@pytest.mark.parametrize("version", ["manifest", "schema"])
async def test_image_with_a_valid_authenticator_from_a_newer_program_stops_the_salvage(
    store: MemoryStore, tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsck must not replace the state of a newer program with an older image."""
    manifest = image_codec.decode(KEY, store.objects[KEY], PLAIN)
    if version == "schema":
        manifest = replace(manifest, schema_version=SCHEMA_VERSION + 1)
        store.objects[KEY] = image_codec.encode(manifest, KEY, PLAIN)
    else:
        with monkeypatch.context() as newer:
            newer.setattr(image_codec, "VERSION", image_codec.VERSION + 1)
            store.objects[KEY] = image_codec.encode(manifest, KEY, PLAIN)
    with pytest.raises(NewerFormatError, match="upgrade"):
        await laid_out(store, tmp_path / "damaged.db")
