"""Tests of a rebuild if all intact images in the bucket belong only to kept points."""

import pytest

from s3fs_meta.codec import changelog
from s3fs_meta.codec.image import ManifestRef
from s3fs_meta.model import Txg
from s3fs_meta.sync.administration.keeping import PointKeeper
from s3fs_meta.sync.chain.head import load_manifest
from tests.check.rebuilding import rebuilt
from tests.sync.conftest import Power, keys_of, unmount, write_file
from tests.sync.kept import Files, files_at, fill, forget

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("small_pieces")]


async def fill_around_a_kept_point(power: Power, *, passed: bool) -> Files:
    """Make a kept point, write many files, and unmount; return the files of the kept point.

    Args:
        passed: the kept point is older than the retention, so later changelogs are deleted.
    """
    files: Files = {}
    if passed:
        await power.retain(0)
    async with power.session("a", tasks=False) as session:
        fill(session, files, *(b"kept %d" % number for number in range(50)))
        await session.make_image()
        await PointKeeper(session).keep("old")
        for number in range(900):
            write_file(session, b"later %d" % number)
        await (forget(session) if passed else session.make_image())
        await unmount(session)
    return files


async def damage_images(power: Power) -> None:
    """Delete every second piece of later images, but no first piece and none of the kept point."""
    keys = await power.keys()
    oldest, *later = [key for key in keys_of(power, "image/") if key.endswith("/manifest")]
    manifest = await load_manifest(power.store, keys.keyring, ManifestRef(oldest))
    needed = {piece.key for piece in manifest.pieces}
    newer = [
        piece.key
        for key in later
        for piece in (await load_manifest(power.store, keys.keyring, ManifestRef(key))).pieces[1:]
        if piece.key not in needed
    ]
    for key in sorted(set(newer))[::2]:
        del power.store.objects[key]


@pytest.mark.parametrize("chain", ["readable", "lost"])
async def test_rebuild_prefers_a_newer_damaged_image_to_the_image_of_a_kept_point(
    power: Power, chain: str
) -> None:
    """The newer image has names from after the kept point, which can still be restored."""
    files = await fill_around_a_kept_point(power, passed=True)
    _of_kept_point, *newer = [key for key in keys_of(power, "image/") if key.endswith("/manifest")]
    await damage_images(power)
    if chain == "lost":
        for key in keys_of(power, "changelog/"):
            txg = changelog.parse_key(key)
            if txg is not None and txg > 4:
                del power.store.objects[key]
    made = await rebuilt(power)
    # The damaged pieces are chosen by their random names, so either newer image may miss fewer.
    assert made.source in newer
    assert made.missing_pieces
    assert await files_at(power, "old") == files


async def test_rebuild_uses_the_retained_image_of_a_kept_point(power: Power) -> None:
    await fill_around_a_kept_point(power, passed=False)
    del power.store.objects[changelog.key_of(Txg(1))]
    await damage_images(power)
    made = await rebuilt(power)
    assert not made.missing_pieces
