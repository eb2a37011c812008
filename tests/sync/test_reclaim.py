"""Deletion in two phases."""

from s3fs_meta.meta import packs

from .conftest import Power, remove_file, write_file

CONTENT = b"hello" * 1000


async def test_dead_pack_goes_after_two_more_images(power: Power) -> None:
    """A pack that one of the last two images names is never deleted."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        await session.flush()
        [(_pack, key)] = packs.all_keys(session.db)
        remove_file(session, ino)

        await session.flush()
        assert key in power.store.objects  # the image before still names it
        write_file(session, b"other")
        await session.flush()
        assert key not in power.store.objects
        await session.close()


async def test_only_two_images_are_kept(power: Power) -> None:
    """Older manifests go, and pieces that the kept ones do not use."""
    async with power.session("a") as session:
        for number in range(5):
            write_file(session, b"%d" % number)
            await session.flush()
        await session.close()

    manifests = [key for key in power.store.objects if key.endswith("/manifest")]
    assert len(manifests) == 2
