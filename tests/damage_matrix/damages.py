"""The kinds of objects, and ways to damage one object or all copies of it.

A damage function returns the replacement of an object, or None to delete the object. If the damage
is impossible, the function returns no change. For example, an image has a random key that is never
used again, so an older version cannot replace the image.
"""

from collections.abc import Callable, Mapping
from typing import Final

from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import level as level_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.model import ObjectKey, Txg
from tests.damage import flipped
from tests.damage_matrix import build, hostile, oracle
from tests.damage_matrix import world as world_of_bytes
from tests.damage_matrix.world import Objects, World

Changes = Mapping[ObjectKey, bytes | None]
Keys = tuple[ObjectKey, ...]

_NO_CHANGE: Final[Changes] = {}


# --- kinds of objects in a bucket --------------------------------------------------------------


def _pack_of(path: bytes, txg: int) -> Callable[[World], Keys]:
    def find(world: World) -> Keys:
        record = world.records[Txg(txg)][path][0]
        assert record is not None
        return (record.pack,)

    return find


def _named(begin: str, number: int) -> Callable[[World], Keys]:
    return lambda world: (sorted(key for key in world.objects if key.startswith(begin))[number],)


def _image(number: int) -> Callable[[World], Keys]:
    """Return a function that finds object *number* of the newest image, where 0 is the manifest."""
    return lambda world: (oracle.images(world)[build.IMAGE_AT][number],)


def _changelog(txg: int) -> Callable[[World], Keys]:
    return lambda _: (ObjectKey(build.key_of(txg)),)


def _manifests(world: World) -> Keys:
    return tuple(key for key in world.objects if image_codec.parse_manifest_key(key) is not None)


def _images(world: World) -> Keys:
    return tuple(key for key in world.objects if key.startswith(image_codec.PREFIX))


def _images_and_pack(world: World) -> Keys:
    return (*_images(world), *_pack_of(b"/file-13", build.LAST)(world))


def _images_and_start(world: World) -> Keys:
    """Return all images, the first changelog, and every level that can replace this changelog."""
    levels = [
        key
        for key in world.objects
        if (name := level_codec.parse_key(key)) is not None and level_codec.first_of(*name) == 1
    ]
    return (*_images(world), ObjectKey(build.key_of(1)), *levels)


KINDS: Final[Mapping[str, Callable[[World], Keys]]] = {
    "superblock": lambda _: (superblock_codec.KEY,),
    "superblock-copy": lambda _: (superblock_codec.COPY_KEY,),
    "both superblocks": lambda _: (superblock_codec.KEY, superblock_codec.COPY_KEY),
    "lease": lambda _: (lease_codec.KEY,),
    "first changelog": _changelog(1),
    "middle changelog": _changelog(3),
    "changelog after the image": _changelog(build.IMAGE_AT + 1),
    "needed changelog": _changelog(17),
    "last changelog": _changelog(build.LAST),
    "part": _named("changelog-part/", 0),
    "level": _named("level/", -1),
    "manifest": _image(0),
    "piece": _image(1),
    "all manifests": _manifests,
    "all images": _images,
    "all images, start of the chain": _images_and_start,
    "all images, a pack": _images_and_pack,
    "pack": _pack_of(b"/file-13", build.LAST),
    "kept point": _named("kept/", 0),
    "pack of earlier points": _pack_of(b"/file-4", 4),
}

# --- kinds of damage to an object --------------------------------------------------------------


def missing(_world: World, key: ObjectKey) -> Changes:
    """The object is deleted."""
    return {key: None}


def empty(_world: World, key: ObjectKey) -> Changes:
    """The object has no content."""
    return {key: b""}


def truncated(world: World, key: ObjectKey) -> Changes:
    """The last third of the object is missing."""
    data = world.objects[key]
    return {key: data[: len(data) * 2 // 3]}


def flipped_bit(world: World, key: ObjectKey) -> Changes:
    """One bit in the middle of the object is flipped."""
    data = world.objects[key]
    return {key: flipped(data, len(data) // 2)}


def another(world: World, key: ObjectKey) -> Changes:
    """The object is replaced by a different object of the same kind."""
    same = [other for other in sorted(world.objects) if other != key and _kind(other) == _kind(key)]
    return {key: world.objects[same[0]]} if same else _NO_CHANGE


def older(world: World, key: ObjectKey) -> Changes:
    """An older object with the same key, or an object from a fork, replaces the object."""
    present = world.objects[key]
    of_superblock = key in {superblock_codec.KEY, superblock_codec.COPY_KEY}
    for source in (world.young,) if of_superblock else (world.early, world.fork):
        if source.get(key, present) != present:
            return {key: source[key]}
    return _NO_CHANGE


def foreign(world: World, key: ObjectKey) -> Changes:
    """The object is replaced by an object of another filesystem with the same passphrase."""
    same = [other for other in sorted(world.foreign) if _kind(other) == _kind(key)]
    chosen = key if key in world.foreign else same[-1] if same else None
    return _NO_CHANGE if chosen is None else {key: world.foreign[chosen]}


def oversized(world: World, key: ObjectKey) -> Changes:
    """Zeros are appended to the object until it exceeds the maximum size of objects."""
    return {key: world_of_bytes.oversized(world.objects[key])}


def well_formed(world: World, key: ObjectKey) -> Changes:
    """The object has valid checksums and harmful content."""
    return hostile.replacement(world, key)


def _kind(key: str) -> str:
    parts = key.split("/")
    last = "manifest" if parts[-1] == "manifest" else ""
    return f"{parts[0]}/{last}"


DAMAGES: Final[Mapping[str, Callable[[World, ObjectKey], Changes]]] = {
    "missing": missing,
    "empty": empty,
    "truncated": truncated,
    "one bit": flipped_bit,
    "different object of its kind": another,
    "older version": older,
    "foreign": foreign,
    "oversized": oversized,
    "hostile": well_formed,
}


def damaged(world: World, kind: str, damage: str) -> Objects | None:
    """Return the damaged objects of a bucket, or None if the damage is impossible."""
    changed: dict[ObjectKey, bytes | None] = dict(world.objects)
    for key in KINDS[kind](world):
        changed.update(DAMAGES[damage](world, key))
    bucket = {key: data for key, data in changed.items() if data is not None}
    return None if bucket == world.objects else bucket
