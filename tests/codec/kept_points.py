"""An example kept point, for tests."""

from s3fs_meta.codec import kept_point
from s3fs_meta.codec.image import ManifestRef, manifest_key
from s3fs_meta.codec.kept_point import KeptPoint
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.model import Epoch, PackId, Txg

UUID = "0b5f8c52-4a53-4c3e-9d52-8d6f4b1f2a3c"


def point_of(
    keyring: Keyring,
    name: str = "before-upgrade",
    *,
    txg: int = 42,
    image: int = 40,
    next_pack: int = 9,
    epoch: int = 3,
    random: int = 1,
) -> KeptPoint:
    """Return a kept point whose restore begins with the image of a txg."""
    digits = random.to_bytes(8, "big")
    return KeptPoint(
        key=kept_point.new_key(Txg(txg), name, keyring, digits),
        name=name,
        uuid=UUID,
        txg=Txg(txg),
        hash="ab" * 32,
        created_ns=1_795_420_800_000_000_000 + txg,
        kept_ns=1_795_420_900_000_000_000 + random,
        epoch=Epoch(epoch),
        next_pack=PackId(next_pack),
        image=ManifestRef(manifest_key(Txg(image), Epoch(epoch), bytes(8)), "cd" * 32),
    )
