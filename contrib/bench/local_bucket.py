"""Buckets in directories, and sessions on them within the process of a benchmark."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from contrib.bench.subjects import S3fsSubject
from s3fs_meta.clock import SystemClock
from s3fs_meta.objects.local import LocalStore
from s3fs_meta.settings import SessionOptions
from s3fs_meta.sync.opening.opening import open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.state_dir import StateDir
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.sync.volume import OpenOptions


@asynccontextmanager
async def opened(bucket: Path) -> AsyncIterator[LocalStore]:
    """Open a bucket, and close it, so that no open file keeps its disk in use."""
    store = LocalStore(bucket)
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.close()


@asynccontextmanager
async def session_of(writer: S3fsSubject) -> AsyncIterator[Session]:
    """Open the unmounted filesystem of a subject for writing, and close it."""
    clock, state_dir = SystemClock(), StateDir(writer.database().parent)
    async with opened(writer.bucket) as store:
        volume = await open_filesystem(store, state_dir, Passphrase(bytes), clock, OpenOptions())
        session = Session(volume, SessionOptions(), clock)
        session.recover()
        session.start()
        yield session
        await session.close()
