"""Loss of content: helpers that delete packs and run fsck -y on another host."""

from s3fs_meta.check.report import Mode, Report
from s3fs_meta.check.run import Examined, FsckOptions, check_filesystem
from s3fs_meta.clock import SystemClock
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import Power


def delete_packs(power: Power, *kept: bytes) -> None:
    """Delete all packs from the bucket, except packs whose content is in *kept*."""
    for key, data in list(power.store.objects.items()):
        if key.startswith("pack/") and data not in kept:
            del power.store.objects[key]


async def repair(power: Power, host: str = "b") -> None:
    """Run fsck -y on a host without cached blocks, and publish its result as an image."""
    async with power.session(host, options=OpenOptions(repairing=True), tasks=False) as session:
        examined = Examined(session.db, power.store, session.volume.keyring)
        await check_filesystem(examined, FsckOptions(repair=Mode.ALL), Report(), SystemClock())
        await session.publish_as_txg()
        await session.close()
