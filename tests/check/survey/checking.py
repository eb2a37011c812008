"""Helpers that check the filesystem of an open session as fsck does."""

from collections.abc import AsyncGenerator

from typing_extensions import override

from s3fs_meta.check.context import NO_EPOCH
from s3fs_meta.check.report import Mode, Report
from s3fs_meta.check.run import Examined, FsckOptions, check_filesystem
from s3fs_meta.clock import SystemClock
from s3fs_meta.objects.contract import ObjectInfo, ObjectStore
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.session import Session
from s3fs_meta.testing.faulty_store import FaultyStore


class EarlyListing(FaultyStore):
    """A store whose listing of one prefix omits objects that are stored later.

    A real listing may omit objects that a mount stores while fsck lists other prefixes.
    """

    def __init__(self, inner: MemoryStore, prefix: str) -> None:
        super().__init__(inner)
        self._prefix = prefix
        self._listed = set(inner.objects)

    @override
    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        async for info in super().list(prefix, after=after):
            if info.key in self._listed or not info.key.startswith(self._prefix):
                yield info


async def checked(
    session: Session,
    mode: Mode = Mode.REPORT,
    *,
    deep: bool = False,
    delete_unknown: bool = False,
    store: ObjectStore | None = None,
) -> Report:
    """Run a check of the filesystem of an idle session, without its cache directory.

    Packs without a row are unknown only with *delete_unknown*.
    """
    session.durability.commit()
    opened = session.volume
    epoch = opened.keeper.epoch if delete_unknown else NO_EPOCH
    examined = Examined(opened.db, store or opened.store, opened.keyring, epoch=epoch)
    wanted = FsckOptions(mode, deep, delete_unknown)
    return await check_filesystem(examined, wanted, Report(), SystemClock())
