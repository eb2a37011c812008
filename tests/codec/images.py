"""An example image manifest, for tests."""

from s3fs_meta.codec.image import (
    Manifest,
    ManifestRef,
    Piece,
    content_hash,
    image_prefix,
    manifest_key,
    piece_key,
)
from s3fs_meta.model import Epoch, Txg

RANDOM = bytes(range(8))

KEY = manifest_key(Txg(5), Epoch(2), RANDOM)

OLD_KEY = manifest_key(Txg(4), Epoch(2), RANDOM)

PREFIX = image_prefix(Txg(5), Epoch(2), RANDOM)

OLD_PREFIX = image_prefix(Txg(4), Epoch(2), RANDOM)

MANIFEST = Manifest(
    txg=Txg(5),
    epoch=Epoch(2),
    uuid="01234567-89ab-cdef-0123-456789abcdef",
    schema_version=1,
    page_size=4096,
    database_bytes=12288,
    created_ns=1_700_000_000_000_000_000,
    previous=ManifestRef(OLD_KEY, content_hash(b"old")),
    pieces=(
        Piece(piece_key(OLD_PREFIX, 0), 8192, content_hash(b"0")),
        Piece(piece_key(PREFIX, 1), 4096, content_hash(b"1")),
    ),
    inodes=17,
    file_bytes=1 << 50,
    changelog=content_hash(b"changelog"),
)

MANIFEST_1 = b"""\
{
 "created_ns": 1700000000000000000,
 "database_bytes": 12288,
 "epoch": 2,
 "file_bytes": 1125899906842624,
 "inodes": 17,
 "page_size": 4096,
 "pieces": [
  [
   "image/000000000004-2-0001020304050607/000000",
   8192,
   "4d067153ac729a4a7e8220c97935ffba67487860d58298ceeb23864369867d9f"
  ],
  [
   "image/000000000005-2-0001020304050607/000001",
   4096,
   "d63bd9a826af91c1fea371965a64e11ee20f13e46b5f52c59901136605b3a487"
  ]
 ],
 "previous": [
  "image/000000000004-2-0001020304050607/manifest",
  "96a4257289f9ebcbc94bfc49276f89ed87f8c951e3fa832d44dceb9b220520a5"
 ],
 "schema_version": 1,
 "txg": 5,
 "uuid": "01234567-89ab-cdef-0123-456789abcdef",
 "version": 1
}"""
