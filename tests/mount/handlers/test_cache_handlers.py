"""Tests of control requests about the cache: checks of names and values, without a mount."""

import os

import pytest
import trio

from s3fs_meta.control.plain_call import no_report
from s3fs_meta.control.protocol import encode
from s3fs_meta.errors import NoSpaceLeftError, UsageError
from s3fs_meta.fs.trees import pins_file
from s3fs_meta.fs.trees.pins_file import Pin
from s3fs_meta.limits import CONTROL_MESSAGE_BYTES_MAX, MIB, PINS_MAX
from s3fs_meta.meta.tables import dentries
from s3fs_meta.meta.tables import inodes as inodes_table
from s3fs_meta.model import ROOT_INO, BlockId
from s3fs_meta.mount.handlers.cache_handlers import CacheHandlers
from s3fs_meta.mount.requests import cache_requests
from s3fs_meta.options.settings import parse_mount_options
from tests.sync.conftest import Power, write_file


async def test_set_request_with_one_invalid_value_changes_no_setting(plain: Power) -> None:
    options = parse_mount_options(["cachesize=1G"])
    async with plain.session(session_options=options, tasks=False) as session:
        on_set = CacheHandlers(options, session).handlers()[cache_requests.SET]
        with pytest.raises(UsageError):
            await on_set({"values": {"cachesize": "64M", "upload_limit": "x"}}, no_report)
        assert session.cache.bytes_max == 1024 * MIB
        await on_set({"values": {"cachesize": "64M", "upload_limit": "1M"}}, no_report)
        assert session.cache.bytes_max == 64 * MIB
        assert session.throttles.upload.bytes_per_s == MIB


async def test_settings_of_concurrent_set_requests_are_not_mixed(plain: Power) -> None:
    """The values of one request are set together, even if evicting blocks takes time."""
    options = parse_mount_options(["cachesize=1G"])
    async with plain.session(session_options=options, tasks=False) as session:
        for _ in range(70):
            write_file(session, os.urandom(MIB))
        await session.flush()
        await session.durability.sync_all()
        on_set = CacheHandlers(options, session).handlers()[cache_requests.SET]
        both = [
            {"cachesize": "64M", "upload_limit": "1M", "download_limit": "1M"},
            {"cachesize": "65M", "upload_limit": "2M", "download_limit": "2M"},
        ]
        async with trio.open_nursery() as nursery:
            for values in both:
                nursery.start_soon(on_set, {"values": values}, no_report)
        found = await on_set({"values": {}}, no_report)

    assert {one["name"]: one["value"] for one in found["settings"]} in both


async def test_cache_limit_below_the_dirty_bytes_preserves_dirty_content(plain: Power) -> None:
    """A cache limit below the dirty bytes is accepted. Writers then wait for the upload."""
    options = parse_mount_options(["cachesize=1G", "sync_interval=1h"])
    async with plain.session(session_options=options, tasks=False) as session:
        for _ in range(66):
            write_file(session, os.urandom(MIB))
        on_set = CacheHandlers(options, session).handlers()[cache_requests.SET]
        found = await on_set({"values": {"cachesize": "64M"}}, no_report)

        assert (found["evicted_bytes"], found["over_bytes"]) == (0, 2 * MIB)
        assert session.cache.index.pending_bytes == 66 * MIB
        assert not session.cache.has_room(1)
        await session.flush()
        await session.durability.sync_all()
        found = await on_set({"values": {}}, no_report)
        assert found["over_bytes"] == 0
        assert session.cache.find_room(1)


async def test_cache_limit_below_the_pinned_bytes_is_refused(plain: Power) -> None:
    """If pins exceed their share of the new limit, the error advises unpin, and no value is set."""
    options = parse_mount_options(["cachesize=1G"])
    async with plain.session(session_options=options, tasks=False) as session:
        session.cache.index.pin(BlockId(1), 33 * MIB)
        on_set = CacheHandlers(options, session).handlers()[cache_requests.SET]
        with pytest.raises(NoSpaceLeftError, match="run s3fs-meta unpin first"):
            await on_set({"values": {"upload_limit": "1M", "cachesize": "64M"}}, no_report)
        assert session.cache.bytes_max == 1024 * MIB
        assert session.throttles.upload.bytes_per_s is None
        await on_set({"values": {"cachesize": "65M"}}, no_report)


@pytest.mark.parametrize(
    "inodes", [None, [], "1", ["1"], [True], [1.5], list(range(1, PINS_MAX + 2))]
)
async def test_cache_request_with_invalid_inodes_is_refused(plain: Power, inodes: object) -> None:
    options = parse_mount_options([])
    async with plain.session(session_options=options, tasks=False) as session:
        handlers = CacheHandlers(options, session).handlers()
        for command in (cache_requests.WARM, cache_requests.UNPIN):
            with pytest.raises(UsageError):
                await handlers[command]({"inodes": inodes}, no_report)


async def test_long_list_of_pins_is_shortened_to_fit_into_a_message(plain: Power) -> None:
    """A shortened list of pins contains the number of pins that were left out."""
    options = parse_mount_options([])
    long = b"/".join([b"\xff" * 200] * 20)
    async with plain.session(session_options=options, tasks=False) as session:
        session.db.begin()
        at = ROOT_INO
        for name in long.split(b"/"):
            directory = inodes_table.create(session.db, 0o040755, 0, 0, at, 0, nlink=2).ino
            dentries.add(session.db, at, name, directory)
            at = directory
        pins = []
        for number in range(300):
            ino = inodes_table.create(session.db, 0o100644, 0, 0, at, 0).ino
            dentries.add(session.db, at, b"%d" % number, ino)
            pins.append(Pin(long + b"/%d" % number, ino, 0))
        pins_file.write(session.volume.state_dir.path, pins)
        handlers = CacheHandlers(options, session)
        await handlers.load()
        found = await handlers.handlers()[cache_requests.PINS]({}, no_report)

    assert found["left_out"] > 0
    assert len(found["pins"]) + found["left_out"] == 300
    assert len(encode({"result": found})) < CONTROL_MESSAGE_BYTES_MAX
