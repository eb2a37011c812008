"""Tests of the mount option ``metrics``, which serves statistics on a port."""

from s3fs_meta.mount.statistics.metrics_option import listening
from s3fs_meta.options.listen_address import Address

LOOPBACK = "127.0.0.1"


async def test_mount_without_the_metrics_option_opens_no_port() -> None:
    async with listening(None, "/m") as server:
        assert server is None


async def test_unmount_closes_the_metrics_port() -> None:
    async with listening(Address(LOOPBACK, 0), "/m") as server:
        assert server is not None
        port = int(server.address.rpartition(":")[2])

    async with listening(Address(LOOPBACK, port), "/m") as server:
        assert server is not None
        assert server.address == f"{LOOPBACK}:{port}"
