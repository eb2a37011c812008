"""Helpers that list a filesystem's objects, and create objects of the most common kinds."""

from s3fs_meta.model import ObjectKey
from s3fs_meta.sync.administration import removal
from s3fs_meta.sync.history.garbage.own_objects import own_objects
from tests.sync.conftest import Power, write_file


async def own(power: Power) -> list[ObjectKey]:
    """Return the keys of the filesystem's own objects."""
    contents = await removal.list_contents(power.store)
    keys = await power.keys(repairing=True)
    return await own_objects(power.store, keys.keyring, contents.named)


async def use(power: Power) -> None:
    """Ship changes, so that the bucket contains packs, changelogs and an image."""
    async with power.session("a", tasks=False) as session:
        for number in range(12):
            write_file(session, bytes([number]) * 50_000)
            await session.flush()
        await session.close()
    kinds = {key.split("/", maxsplit=1)[0] for key in power.store.objects}
    assert kinds >= {"image", "changelog", "pack", "lease", "superblock", "superblock-copy"}
