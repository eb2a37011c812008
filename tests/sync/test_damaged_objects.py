"""Damage to every object of a bucket: flipped bit, truncation, deletion, extension, exchange.

A host without local state mounts and reads everything; then fsck checks the bucket. The result is
either exactly the written content or an error of this program. The mount or fsck reports the
damage, with the exceptions that the test lists.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from s3fs_meta.check.report import Report
from s3fs_meta.check.run import Examined, FsckOptions, check_filesystem
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec.lease import KEY as LEASE
from s3fs_meta.codec.pack import TRAILER_BYTES
from s3fs_meta.codec.superblock import KEY as SUPERBLOCK
from s3fs_meta.errors import S3fsError
from s3fs_meta.limits import LEVEL_FAN_OUT
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Ino, ObjectKey
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.upload.bounds import DEFAULT_BOUNDS, UploadBounds
from s3fs_meta.sync.volume import OpenOptions
from tests.damage import flipped
from tests.sync.conftest import Power, read_file, write_file

pytestmark = pytest.mark.thorough

Objects = dict[ObjectKey, bytes]


def flip(objects: Objects, key: ObjectKey) -> None:
    """Flip one bit in the middle of an object."""
    objects[key] = flipped(objects[key], len(objects[key]) // 2)


def flip_version(objects: Objects, key: ObjectKey) -> None:
    """Flip one bit in the version field of an object; its offset depends on the kind."""
    data = objects[key]
    at = len(data) - TRAILER_BYTES + 9 if key.startswith("pack/") else 9
    objects[key] = flipped(data, at, 3)


def shorten(objects: Objects, key: ObjectKey) -> None:
    """Truncate an object to two thirds of its bytes."""
    objects[key] = objects[key][: len(objects[key]) * 2 // 3]


def lengthen(objects: Objects, key: ObjectKey) -> None:
    """Append nine bytes to an object."""
    objects[key] += b"\0" * 9


def empty(objects: Objects, key: ObjectKey) -> None:
    """Remove all bytes of an object."""
    objects[key] = b""


def remove(objects: Objects, key: ObjectKey) -> None:
    """Delete an object."""
    del objects[key]


def exchange(objects: Objects, key: ObjectKey) -> None:
    """Replace an object with another object, if possible of the same kind."""
    kind = key.split("/", maxsplit=1)[0]
    different = [other for other in objects if objects[other] != objects[key]]
    others = [other for other in different if other.startswith(kind)]
    objects[key] = objects[(others or different)[0]]


DAMAGES: list[Callable[[Objects, ObjectKey], None]] = [
    flip,
    flip_version,
    shorten,
    lengthen,
    empty,
    remove,
    exchange,
]


class Outcome(NamedTuple):
    """The content that is readable after damage, and all messages about the damage."""

    words: str  # Notices, errors and findings that fsck reports.
    # The content of each file, or None if the file is unreadable.
    contents: Mapping[Ino, bytes | None]


def write(session: Session, number: int) -> tuple[Ino, bytes]:
    """Create a file with a name; return its inode and content."""
    content = b"%d" % number * 4000
    ino = write_file(session, content)
    dentries.add(session.db, ROOT_INO, b"file-%d" % number, ino)
    inodes.change_directory(session.db, ROOT_INO, number, entries=1)
    return ino, content


async def a_bucket(power: Power) -> dict[Ino, bytes]:
    """Fill a bucket with objects of all kinds that a mount reads; return all file contents."""
    contents: dict[Ino, bytes] = {}
    async with power.session("a", tasks=False) as session:
        for number in range(4):
            contents |= [write(session, number)]
            await session.flush()
        await session.make_image()
        session.uploader.bounds = UploadBounds(locations=1)
        contents |= [write(session, number) for number in range(4, 7)]
        await session.flush()
        session.uploader.bounds = DEFAULT_BOUNDS
        for number in range(7, 7 + 2 * LEVEL_FAN_OUT):
            contents |= [write(session, number)]
            await session.flush_at_end()
        await session.leveler.make_due()
        await session.close()
    return contents


async def outcome_of(power: Power, contents: dict[Ino, bytes], host: str) -> Outcome:
    """Mount on a host, read every file, and run fsck --deep."""
    said: list[str] = []
    found: dict[Ino, bytes | None] = dict.fromkeys(contents)
    options = OpenOptions(read_only=True)
    try:
        async with power.session(host, options=options, tasks=False) as session:
            said += session.volume.notices
            for ino in contents:
                try:
                    found[ino] = await read_file(session, ino)
                except S3fsError as exc:
                    said.append(str(exc))
            session.db.commit()
            examined = Examined(session.db, power.store, session.volume.keyring)
            report = await check_filesystem(
                examined, FsckOptions(deep=True), Report(), SystemClock()
            )
            said += [str(finding) for verdict in report.verdicts for finding in verdict.examples]
    except S3fsError as exc:
        said.append(str(exc))
    return Outcome("\n".join(said), found)


@pytest.mark.parametrize(
    "damage",
    # All kinds of damage are detected by the same checks; tests/damage_matrix has samples of all.
    [
        pytest.param(one, marks=() if one in {flip, remove} else pytest.mark.slow, id=one.__name__)
        for one in DAMAGES
    ],
)
async def test_damaged_object_is_reported_and_not_read_as_wrong_content(
    power: Power, damage: Callable[[Objects, ObjectKey], None]
) -> None:
    """A read returns correct content or an error, and a message names most damaged objects."""
    contents = await a_bucket(power)
    healthy = dict(power.store.objects)
    kinds = {key.split("/", maxsplit=1)[0] for key in healthy}
    assert kinds >= {"superblock", "lease", "pack", "image", "changelog", "changelog-part", "level"}
    before = await outcome_of(power, contents, "healthy")
    assert before == Outcome("", contents)
    last = max(key for key in healthy if key.startswith("changelog/"))
    for number, key in enumerate(sorted(healthy)):
        power.store.objects.clear()
        power.store.objects.update(healthy)
        damage(power.store.objects, key)

        outcome = await outcome_of(power, contents, f"host-{number}")

        for ino, content in outcome.contents.items():
            assert content in (None, contents[ino]), f"{key}: wrong content"
        if key == last and damage is remove:
            # Only a host that remembers the last changelog notices its removal.
            # See test_local_state_choice.py for a host that remembers the last changelog.
            continue
        if key.startswith("level/") and damage is remove:
            # If a level object is missing, a restore reads its changelogs.
            assert outcome == before
            continue
        if key not in {LEASE, SUPERBLOCK}:
            assert key in outcome.words, f"{damage.__name__} of {key} was not reported"
        elif not (key == LEASE and damage is exchange):
            assert outcome.words, f"{damage.__name__} of {key} was not reported"
