"""Packs that stay unread, as rows."""

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import abandoned_images, kept_packs
from s3fs_meta.model import ObjectKey

PACK = ObjectKey("pack/00/1-" + "0" * 32)


def test_noted_packs_are_found_and_nothing_else(db: Database) -> None:
    """Neither facts of mkfs nor images that were given up."""
    abandoned_images.add(db, [ObjectKey("image/000000000007-1-0123456789abcdef/manifest")])
    assert kept_packs.keys(db) == set()
    kept_packs.add(db, [PACK])
    kept_packs.add(db, [PACK])
    assert kept_packs.keys(db) == {PACK}
    assert PACK not in abandoned_images.keys(db)
