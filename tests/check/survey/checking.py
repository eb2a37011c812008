"""A check of the filesystem of an open session."""

from s3fs_meta.check.report import Mode, Report
from s3fs_meta.check.run import Examined, FsckOptions, check_filesystem
from s3fs_meta.clock import SystemClock
from s3fs_meta.sync.session import Session


async def checked(session: Session, mode: Mode = Mode.REPORT, *, deep: bool = False) -> Report:
    """Check the filesystem of an idle session."""
    session.durability.commit()
    opened = session.volume
    examined = Examined(opened.db, opened.store, opened.keyring)
    wanted = FsckOptions(repair=mode, deep=deep)
    return await check_filesystem(examined, wanted, Report(), SystemClock())
