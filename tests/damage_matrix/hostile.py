"""Hostile objects: their checksums are valid, but their content is harmful.

An attacker with write access to the bucket can make them for a plain filesystem. For an encrypted
filesystem, an attacker without the key can make only two kinds: a superblock that claims to be
plain, and a lease with any content.
"""

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import apsw

from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import kept_point as kept_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import level as level_codec
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.changelog import Kind, Section
from s3fs_meta.codec.image import Manifest, Piece
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.limits import IMAGE_PIECE_BYTES, IMAGE_PIECES_MAX
from s3fs_meta.model import Epoch, ObjectKey, PackId
from tests.damage_matrix import oracle
from tests.damage_matrix.world import Objects, World

_WITHOUT_THE_KEY: Final = {superblock_codec.KEY, superblock_codec.COPY_KEY, lease_codec.KEY}
_PIECES: Final = IMAGE_PIECES_MAX  # A small manifest can list pieces with a total of 256 GiB.


def replacement(world: World, key: ObjectKey) -> Objects:
    """Return hostile replacements of a healthy object, or none if making them requires the key."""
    kind = key.split("/", maxsplit=1)[0]
    if world.encrypted and kind not in _WITHOUT_THE_KEY:
        return {}
    return _MAKERS[kind](world, key)


def _superblock(world: World, key: ObjectKey) -> Objects:
    """Disable the retention of a plain filesystem, or claim that an encrypted one is plain."""
    data = world.objects[key]
    present = superblock_codec.decode(key, data)
    if not world.encrypted:
        return {key: superblock_codec.encode(replace(present, retention_s=0))}
    return {key: superblock_codec.encode(_plain(present))}


def _plain(present: Superblock) -> Superblock:
    return replace(
        present,
        hash_key="11" * 32,
        wrapped_by_passphrase=None,
        wrapped_by_recovery=None,
        authenticator=None,
    )


def _lease(world: World, key: ObjectKey) -> Objects:
    """Set the epoch to its maximum, so that no host can acquire a later epoch."""
    lease = lease_codec.decode(key, world.objects[key])
    return {key: lease_codec.encode(replace(lease, epoch=Epoch(2**63 - 1)))}


def _changelog(world: World, key: ObjectKey) -> Objects:
    """Make a changelog with a row value of a type that the program never writes."""
    keyring = world.keyring()
    changelog = changelog_codec.decode(key, world.objects[key], keyring)
    section = changelog.section._replace(changeset=_bad_changes(world, keyring))
    return {
        key: changelog_codec.encode(replace(changelog, kind=Kind.GROUP, section=section), keyring)
    }


def _part(world: World, key: ObjectKey) -> Objects:
    """Make a changelog part that no changelog refers to."""
    keyring = world.keyring()
    section = Section(_bad_changes(world, keyring), ())
    return {key: changelog_codec.encode_part(key, section, keyring)}


def _level(world: World, key: ObjectKey) -> Objects:
    """Make a level object with a row value of a type that the program never writes."""
    keyring = world.keyring()
    level = level_codec.decode(key, world.objects[key], keyring)
    section = level.section._replace(changeset=_bad_changes(world, keyring))
    return {key: level_codec.encode(replace(level, section=section), keyring)}


def _image(world: World, key: ObjectKey) -> Objects:
    if image_codec.parse_manifest_key(key) is not None:
        return _long_manifest(world, key)
    return _trigger(world, key)


def _long_manifest(world: World, key: ObjectKey) -> Objects:
    """List so many pieces that a restore from the manifest would use too much memory."""
    keyring = world.keyring()
    manifest = image_codec.decode(key, world.objects[key], keyring)
    prefix = image_codec.image_of(key)
    pieces = tuple(
        Piece(image_codec.piece_key(prefix, number), IMAGE_PIECE_BYTES, image_codec.NO_HASH)
        for number in range(_PIECES)
    )
    changed = replace(manifest, pieces=pieces, database_bytes=_PIECES * IMAGE_PIECE_BYTES)
    return _with_head(world, key, changed, keyring)


def _trigger(world: World, key: ObjectKey) -> Objects:
    """Add a trigger to the database in the image."""
    keyring = world.keyring()
    manifest_key = next(keys[0] for keys in oracle.images(world).values() if key in keys)
    manifest = image_codec.decode(manifest_key, world.objects[manifest_key], keyring)
    content = image_codec.decode_piece(manifest.pieces[0], world.objects[key], keyring)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "image.db"
        path.write_bytes(content)
        with sqlite3.connect(path) as db:
            db.execute("CREATE TRIGGER harm AFTER INSERT ON inodes BEGIN DELETE FROM dentries; END")
        db.close()
        content = path.read_bytes()
    piece = Piece(key, len(content), image_codec.content_hash(content))
    changed = replace(manifest, pieces=(piece,), database_bytes=len(content))
    return {
        key: image_codec.encode_piece(key, content, keyring),
        **_with_head(world, manifest_key, changed, keyring),
    }


def _with_head(world: World, key: ObjectKey, manifest: Manifest, keyring: Keyring) -> Objects:
    """Make a manifest, and a lease that has this manifest as the head."""
    data = image_codec.encode(manifest, key, keyring)
    lease = lease_codec.decode(lease_codec.KEY, world.objects[lease_codec.KEY])
    assert lease.head is not None
    head = lease.head._replace(manifest_hash=image_codec.content_hash(data))
    return {key: data, lease_codec.KEY: lease_codec.encode(replace(lease, head=head))}


def _pack(world: World, key: ObjectKey) -> Objects:
    """Make a pack that has the same number of blocks with different content."""
    keyring = world.keyring()
    writer = pack_codec.PackWriter(key, keyring, "zstd-1")
    for entry, _content in pack_codec.open_pack(keyring, key, world.objects[key]):
        content = b"!" * entry.plain_bytes
        digest = keyring.block_hash(content)
        writer.add(entry.block, entry.ino, entry.block_index, digest, content)
    return {key: bytes(writer.finish().data)}


def _kept(world: World, key: ObjectKey) -> Objects:
    """Make a kept point that refers to a missing image and to no packs."""
    keyring = world.keyring()
    point = kept_codec.decode(key, world.objects[key], keyring)
    image = point.image._replace(key=image_codec.manifest_key(point.txg, Epoch(1), bytes(8)))
    return {key: kept_codec.encode(replace(point, image=image, next_pack=PackId(1)), keyring)}


def _bad_changes(world: World, keyring: Keyring) -> bytes:
    """Return a changeset that sets the mode of a file to a BLOB."""
    keys = max(oracle.images(world).items())[1]
    manifest = image_codec.decode(keys[0], world.objects[keys[0]], keyring)
    content = b"".join(
        image_codec.decode_piece(piece, world.objects[piece.key], keyring)
        for piece in manifest.pieces
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "image.db"
        path.write_bytes(content)
        db = apsw.Connection(str(path))
        session = apsw.Session(db, "main")
        session.attach(None)
        db.execute("UPDATE inodes SET mode = x'00ff' WHERE ino = (SELECT max(ino) FROM inodes)")
        found = session.changeset()
        session.close()
        db.close()
    return found


_MAKERS: Final[Mapping[str, Callable[[World, ObjectKey], Objects]]] = {
    "superblock": _superblock,
    "superblock-copy": _superblock,
    "lease": _lease,
    "changelog": _changelog,
    "changelog-part": _part,
    "level": _level,
    "image": _image,
    "pack": _pack,
    "kept": _kept,
}
