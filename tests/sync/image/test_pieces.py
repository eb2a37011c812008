"""Upload of image pieces."""

import os
from pathlib import Path

import pytest

from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import ObjectMissingError
from s3fs_meta.limits import IMAGE_PIECE_BYTES, OBJECT_BYTES_MAX
from s3fs_meta.model import Epoch, Txg
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.image.pieces import new_image, put_pieces, require_pieces

KEYRING = Keyring(None, bytes(32))


async def test_unchanged_image_pieces_are_not_uploaded_again(tmp_path: Path) -> None:
    """If the database changes, only the changed pieces are uploaded."""
    store = MemoryStore()
    copy = tmp_path / "copy.db"
    content = os.urandom(2 * IMAGE_PIECE_BYTES + 100)
    copy.write_bytes(content)
    first = await put_pieces(store, KEYRING, new_image(Txg(1), Epoch(1)), copy)
    with copy.open("r+b") as file:
        file.seek(IMAGE_PIECE_BYTES + 7)
        file.write(b"changed")
    before = set(store.objects)

    second = await put_pieces(store, KEYRING, new_image(Txg(2), Epoch(1)), copy, first)

    assert [new.key == old.key for new, old in zip(second, first, strict=True)] == [
        True,
        False,
        True,
    ]
    assert set(store.objects) - before == {second[1].key}


async def test_missing_image_piece_is_detected(tmp_path: Path) -> None:
    """A piece that was deleted from the store must be uploaded for the next image."""
    store = MemoryStore()
    copy = tmp_path / "copy.db"
    copy.write_bytes(os.urandom(2 * IMAGE_PIECE_BYTES))
    first = await put_pieces(store, KEYRING, new_image(Txg(1), Epoch(1)), copy)
    await require_pieces(store, first)
    del store.objects[first[1].key]

    with pytest.raises(ObjectMissingError, match=first[1].key):
        await require_pieces(store, first)


async def test_progress_counts_every_image_piece(tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(bytes(IMAGE_PIECE_BYTES + 1))
    seen: list[tuple[str, int, int]] = []

    await put_pieces(
        MemoryStore(),
        KEYRING,
        new_image(Txg(1), Epoch(1)),
        copy,
        (),
        lambda what, done, total: seen.append((what, done, total)),
    )

    assert seen == [("metadata", 1, 2), ("metadata", 2, 2)]


def test_two_images_of_one_txg_have_different_object_keys() -> None:

    one, other = new_image(Txg(1), Epoch(1)), new_image(Txg(1), Epoch(1))

    assert one.prefix != other.prefix


@pytest.mark.slow
async def test_large_database_is_split_into_pieces(tmp_path: Path) -> None:
    """A large database is split into pieces, because S3 limits one PUT to 5 GB."""
    copy = tmp_path / "copy.db"
    with copy.open("wb") as file:
        # Only file sizes are compared, so a sparse file is sufficient.
        file.truncate(OBJECT_BYTES_MAX + 1)
    store = MemoryStore()

    pieces = await put_pieces(store, KEYRING, new_image(Txg(1), Epoch(1)), copy)

    assert sum(piece.plain_bytes for piece in pieces) == OBJECT_BYTES_MAX + 1
    assert max(piece.plain_bytes for piece in pieces) == IMAGE_PIECE_BYTES
    assert {piece.key for piece in pieces} == set(store.objects)
