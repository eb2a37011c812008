"""The head of the chain (a reference to the newest image), as stored on this host."""

from pathlib import Path

import pytest

from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Head
from s3fs_meta.errors import FormatError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import local_state
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.chain import head as image_head

HEAD = Head(Txg(3), ObjectKey("image/000000000003-1-00112233aabbccdd/manifest"), "ab" * 32)


def test_confirmed_image_is_recorded_as_the_head_of_the_chain(tmp_path: Path) -> None:
    """When an image is confirmed, it becomes the head and its upload is no longer unfinished."""
    facts = {"uuid": b"u", "block_bytes": b"1048576", "cookie_key": bytes(16)}
    db = Database.create(tmp_path / "meta.db", Pragmas(), facts)
    db.begin_local()
    assert image_head.recorded(db, "head") is None

    image_head.note_attempt(db, HEAD)
    assert image_head.recorded(db, "attempt") == HEAD
    image_head.confirm(db, HEAD, changed=True)

    assert image_head.recorded(db, "head") == HEAD
    assert image_head.recorded(db, "attempt") is None
    assert local_state.get(db, "changed") == "1"
    db.close()


async def test_manifest_that_does_not_match_the_head_of_the_chain_is_refused() -> None:
    """A manifest is parsed only if it has the hash that the head contains."""
    store = MemoryStore()
    await store.put(HEAD.manifest_key, b"something else")

    with pytest.raises(FormatError, match="does not match the recorded hash"):
        await image_head.load_manifest(store, Keyring(None, bytes(32)), HEAD.manifest)
