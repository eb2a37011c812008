"""Writing the objects of an image."""

import os
from pathlib import Path

import pytest

from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import ObjectMissingError
from s3fs_meta.limits import IMAGE_PIECE_BYTES, OBJECT_BYTES_MAX
from s3fs_meta.model import Epoch, Txg
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.image.pieces import new_image, put_pieces, require_pieces
from s3fs_meta.sync.progress import no_progress

KEYRING = Keyring(None, bytes(32))


async def test_unchanged_pieces_keep_their_old_names(tmp_path: Path) -> None:
    """Only the changed piece is stored again."""
    store = MemoryStore()
    copy = tmp_path / "copy.db"
    content = os.urandom(2 * IMAGE_PIECE_BYTES + 100)
    copy.write_bytes(content)
    first = await put_pieces(store, KEYRING, new_image(Txg(1), Epoch(1)), copy, (), no_progress)
    with copy.open("r+b") as file:
        file.seek(IMAGE_PIECE_BYTES + 7)
        file.write(b"changed")
    before = set(store.objects)

    second = await put_pieces(store, KEYRING, new_image(Txg(2), Epoch(1)), copy, first, no_progress)

    assert [new.key == old.key for new, old in zip(second, first, strict=True)] == [
        True,
        False,
        True,
    ]
    assert set(store.objects) - before == {second[1].key}


async def test_missing_piece_is_uploaded_again(tmp_path: Path) -> None:
    """An image names only pieces that are in the store, independent of the last manifest."""
    store = MemoryStore()
    copy = tmp_path / "copy.db"
    copy.write_bytes(os.urandom(2 * IMAGE_PIECE_BYTES))
    first = await put_pieces(store, KEYRING, new_image(Txg(1), Epoch(1)), copy, (), no_progress)
    await require_pieces(store, first)
    del store.objects[first[1].key]

    with pytest.raises(ObjectMissingError, match=first[1].key):
        await require_pieces(store, first)


async def test_progress_counts_every_piece(tmp_path: Path) -> None:
    """The last report is 100 %."""
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


def test_no_two_images_share_a_name() -> None:
    """Even two attempts at one txg have different names."""
    one, other = new_image(Txg(1), Epoch(1)), new_image(Txg(1), Epoch(1))

    assert one.prefix != other.prefix


@pytest.mark.slow
async def test_database_larger_than_one_object_is_split_into_pieces(tmp_path: Path) -> None:
    """More than S3 accepts in one PUT (5 GB) becomes many pieces, each well below it."""
    copy = tmp_path / "copy.db"
    with copy.open("wb") as file:
        file.truncate(OBJECT_BYTES_MAX + 1)  # sparse: only sizes are tested, not content
    store = MemoryStore()

    pieces = await put_pieces(store, KEYRING, new_image(Txg(1), Epoch(1)), copy, (), no_progress)

    assert sum(piece.plain_bytes for piece in pieces) == OBJECT_BYTES_MAX + 1
    assert max(piece.plain_bytes for piece in pieces) == IMAGE_PIECE_BYTES
    assert {piece.key for piece in pieces} == set(store.objects)
