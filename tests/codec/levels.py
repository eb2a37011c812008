"""An example level object (a merged run of changelogs), for tests."""

from s3fs_meta.codec.image import content_hash
from s3fs_meta.codec.level import Level
from s3fs_meta.model import Epoch, PackId, Txg
from tests.codec.changelogs import PACKS, SECTION

LEVEL = Level(
    level=2,
    last=Txg(50),
    epoch=Epoch(3),
    uuid="01234567-89ab-cdef-0123-456789abcdef",
    schema_version=1,
    first_ns=1_700_000_000_000_000_000,
    created_ns=1_700_000_100_000_000_000,
    previous=content_hash(b"changelog 25"),
    hash=content_hash(b"changelog 50"),
    floor=Txg(5),
    packs=PACKS,
    forgotten=(PackId(4), PackId(3)),
    section=SECTION,
)

KEY = LEVEL.key
