"""The mount option ``metrics=``: listening for clients that read the statistics.

Owns: the order of the start. A mount starts to listen before it changes the bucket. If the port is
in use, the mount thus fails early. Does not know: how ``metrics_server`` answers requests. That
module is imported only with the option.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from s3fs_meta.options.listen_address import Address

if TYPE_CHECKING:
    from s3fs_meta.mount.statistics.metrics_server import MetricsServer


@contextlib.asynccontextmanager
async def listening(
    address: Address | None, mountpoint: str
) -> AsyncIterator["MetricsServer | None"]:
    """Listen on an address for the duration of a context; yield None if no address is given.

    Raises:
        SettingsError: the address cannot be used.
    """
    if address is None:
        yield None
        return
    # Imported late, because mounts without the option need no HTTP server.
    from s3fs_meta.mount.statistics.metrics_server import MetricsServer

    server = MetricsServer(mountpoint)
    await server.listen(address)
    try:
        yield server
    finally:
        server.close()
