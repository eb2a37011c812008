"""Handlers and requests about the cache without a mount: names and values are checked first."""

import os

import pytest
import trio

from s3fs_meta.control.plain_call import no_report
from s3fs_meta.errors import UsageError
from s3fs_meta.limits import MIB
from s3fs_meta.mount import cache_requests
from s3fs_meta.mount.cache_handlers import CacheHandlers
from s3fs_meta.settings import parse_mount_options
from tests.sync.conftest import Power, plain, write_file

__all__ = ["plain"]


async def test_no_value_applies_if_one_is_wrong(plain: Power) -> None:
    options = parse_mount_options(["cachesize=1G"])
    async with plain.session(session_options=options, tasks=False) as session:
        on_set = CacheHandlers(options, session).handlers()[cache_requests.SET]
        with pytest.raises(UsageError):
            await on_set({"values": {"cachesize": "64M", "upload_limit": "x"}}, no_report)
        assert session.cache.bytes_max == 1024 * MIB
        await on_set({"values": {"cachesize": "64M", "upload_limit": "1M"}}, no_report)
        assert session.cache.bytes_max == 64 * MIB
        assert session.throttles.upload.bytes_per_s == MIB


async def test_two_changes_at_once_do_not_mix(plain: Power) -> None:
    """All values of one request apply together, also while a smaller cache is being emptied."""
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
