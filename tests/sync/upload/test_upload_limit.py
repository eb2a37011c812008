"""The option upload_limit: which uploads wait for it, and which uploads ignore it."""

import os
from contextlib import aclosing

import pytest
import trio

from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.limits import KIB, MIB
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import Ino
from s3fs_meta.options.rate_limit import rate_limit
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.upload.bounds import UploadBounds
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.polling import WAIT_S_MAX, until
from tests.sync.conftest import REGULAR, Power, read_file, unmount, write_file

IMPATIENT = UploadBounds(seal_age_s=0.01, seal_linger_s=0.01)
SLOW = rate_limit("upload_limit", "1K")  # The limit delays a pack of 1 MiB by over 15 minutes.
STRICT = rate_limit("upload_limit", "1K strict")


def _make_empty_file(session: Session) -> None:
    session.db.begin()
    inodes.create(session.db, REGULAR, 0, 0, Ino(1), 0)


async def _waiting(session: Session) -> None:
    """Write a file, and return when its pack waits for the upload limit."""
    write_file(session, os.urandom(MIB - KIB))
    await until(lambda: session.throttles.upload.waiting_bytes > 0)


async def test_background_upload_waits_for_the_limit(power: Power) -> None:
    """While a pack waits for the upload limit, checks of the lease continue."""
    options = SessionOptions(upload_limit=SLOW, sync_interval_s=3600)
    async with power.session(session_options=options, bounds=IMPATIENT) as session:
        await _waiting(session)

        await session.volume.keeper.reread()
        await session.volume.keeper.confirm()

        async with aclosing(power.store.list("pack/")) as listing:
            assert [info.key async for info in listing] == []
        assert session.uploader.pending == 1
        assert session.status.writable


async def test_unmount_ignores_the_upload_limit(power: Power) -> None:
    """An unmount uploads all packs at full speed, even a pack that is already waiting."""
    options = SessionOptions(upload_limit=SLOW, sync_interval_s=3600)
    async with power.session(session_options=options, bounds=IMPATIENT) as session:
        await _waiting(session)
        ino = write_file(session, b"more")
        with trio.fail_after(WAIT_S_MAX):
            await unmount(session)
    async with power.session("b") as session:
        assert await read_file(session, ino) == b"more"


async def test_remote_fsync_ignores_the_upload_limit(power: Power) -> None:
    """With fsync=remote, an fsync does not wait for the upload limit."""
    options = SessionOptions(upload_limit=SLOW, sync_interval_s=3600, fsync="remote")
    async with power.session(session_options=options, bounds=IMPATIENT) as session:
        await _waiting(session)
        ino = write_file(session, os.urandom(MIB // 2))
        with trio.fail_after(WAIT_S_MAX):
            await session.sync_file(ino)

        assert session.uploader.pending == 0


async def test_uploads_that_free_a_full_cache_ignore_the_upload_limit(power: Power) -> None:
    """If writers wait for cache space, blocks are uploaded at full speed."""
    options = SessionOptions(
        upload_limit=SLOW, cache_bytes=2 * MIB, sync_interval_s=3600, commit_interval_s=3600
    )
    async with power.session(session_options=options, bounds=IMPATIENT) as session:
        with trio.fail_after(WAIT_S_MAX):
            for _ in range(8):
                await session.cache.wait_for_room(MIB // 2)
                write_file(session, os.urandom(MIB // 2))

        assert session.cache.index.total_bytes <= 2 * MIB


async def test_strict_upload_limit_applies_to_an_unmount(power: Power) -> None:
    """With a strict limit, even the last upload of an unmount waits."""
    options = SessionOptions(upload_limit=STRICT, sync_interval_s=3600)
    async with power.session(session_options=options, bounds=IMPATIENT) as session:
        await _waiting(session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.flush_at_end)
            await until(lambda: session.shipper.frozen_seq > 0)
            assert session.throttles.upload.waiting_bytes > 0
            assert session.uploader.pending == 1
            session.throttles.upload.set(rate_limit("upload_limit", "off"))
        assert session.uploader.pending == 0
        await session.close()


async def test_pack_that_was_not_sent_does_not_wait_for_the_limit_a_second_time(
    power: Power,
) -> None:
    """If a failed request has sent no bytes, the retry does not wait for the limit again."""
    faulty = FaultyStore(power.store)
    options = SessionOptions(upload_limit=STRICT, sync_interval_s=3600)
    async with power.session(store=faulty, session_options=options, bounds=IMPATIENT) as session:
        refused = StoreUnavailableError("pack", 8, 60.0, "connection refused")
        refused.note_transfer(0, 0)
        faulty.fail("create", refused)
        session.throttles.upload.give_back(MIB)
        write_file(session, os.urandom(MIB - KIB))
        await until(lambda: session.uploader.uploaded_packs == 1)


async def test_writer_waits_while_the_limit_delays_the_attempt_after_a_failure(
    power: Power,
) -> None:
    """A writer waits longer than write_timeout while a strict limit delays a retry."""
    faulty, timeout_s = FaultyStore(power.store), 0.1
    options = SessionOptions(sync_interval_s=3600, write_timeout_s=timeout_s)
    async with power.session(store=faulty, session_options=options, bounds=IMPATIENT) as session:
        upload = session.throttles.upload
        faulty.fail("create", StoreUnavailableError("pack", 8, 60.0, "connection refused"))
        # At the minimum speed, the upload of this pack takes 0.03 s.
        write_file(session, os.urandom(KIB))
        await until(lambda: "connection refused" in session.uploader.last_error)
        upload.set(STRICT)
        upload.charge(MIB)
        await until(lambda: upload.waiting_bytes > 0)

        async def has_room() -> bool:
            await trio.lowlevel.checkpoint()
            return session.uploader.uploaded_packs == 1

        with trio.move_on_after(10 * timeout_s) as scope:
            await session.cache.writers.wait(has_room)
        assert scope.cancelled_caught, "the writer has given up"
        upload.set(rate_limit("upload_limit", "off"))
        await until(lambda: session.uploader.uploaded_packs == 1)
        assert await session.cache.writers.wait(has_room)


async def test_changelogs_without_content_ignore_the_upload_limit(power: Power) -> None:
    """Changelogs do not wait, even if uploads of content have used up the limit."""
    options = SessionOptions(upload_limit=SLOW, sync_interval_s=3600)
    async with power.session(session_options=options, bounds=IMPATIENT) as session:
        session.throttles.upload.charge(1 << 30)
        _make_empty_file(session)
        with trio.fail_after(WAIT_S_MAX):
            link = await session.flush()

        assert link is not None


@pytest.mark.slow
async def test_images_wait_for_the_upload_limit(power: Power) -> None:
    """Images can be as large as all metadata, so they wait like other background traffic."""
    options = SessionOptions(upload_limit=SLOW, sync_interval_s=3600)
    async with power.session(session_options=options, bounds=IMPATIENT) as session:
        _make_empty_file(session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.make_image)
            await until(lambda: session.throttles.upload.waiting_bytes > 0)
            with trio.fail_after(WAIT_S_MAX):
                _make_empty_file(session)
                await session.flush()
            with session.throttles.upload.lifted():
                await trio.lowlevel.checkpoint()
                await until(lambda: session.throttles.upload.waiting_bytes == 0)
