"""Handlers and requests about the cache without a mount: names and values are checked first."""

import pytest

from s3fs_meta.control.plain_call import no_report
from s3fs_meta.errors import UsageError
from s3fs_meta.limits import MIB
from s3fs_meta.mount import cache_requests
from s3fs_meta.mount.cache_handlers import CacheHandlers
from s3fs_meta.settings import parse_mount_options
from tests.sync.conftest import Power, plain

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
