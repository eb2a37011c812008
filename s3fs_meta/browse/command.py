"""Serving the pages of one filesystem until the user stops the server.

Owns: the order of steps: open, listen, announce the URL. Does not know: arguments of commands.
"""

import signal
from collections.abc import Callable

import trio

from s3fs_meta.browse import access, page_server, templates
from s3fs_meta.browse.access import Access
from s3fs_meta.browse.names import shell_word
from s3fs_meta.browse.pages.wanted import target_arguments
from s3fs_meta.browse.pending_pages import PendingPages
from s3fs_meta.browse.site import Site
from s3fs_meta.browse.sources import source
from s3fs_meta.browse.sources.mount_watch import MountWatch
from s3fs_meta.mount.snapshot_source import Reading
from s3fs_meta.options.listen_address import Address


async def serve(reading: Reading, address: Address, announce: Callable[[str], None]) -> None:
    """Serve the pages of a filesystem until SIGINT or SIGTERM.

    Args:
        reading: the filesystem.
        address: the address to listen on; port 0 selects any free port.
        announce: called with the URL for the user.

    Raises:
        SettingsError: jinja2 is missing, or the address is not on loopback or in use.
        The errors of ``source.opened``.
    """
    root, place = access.new_path(), reading.place
    watch = MountWatch(place) if place.mounted else None
    target = " ".join(map(shell_word, target_arguments(reading)))
    render = templates.load(root=root, place=place.url, target=target, has_mount=watch is not None)
    server = await page_server.listening(address)
    try:
        async with source.opened(reading) as opened, trio.open_nursery() as nursery:
            secrets = Access(server.address, root)
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                if watch is not None:
                    nursery.start_soon(watch.run)
                site = Site(opened, secrets, render, PendingPages(nursery), watch)
                nursery.start_soon(server.serve, site.answer)
                announce(secrets.url)
                async for _ in signals:
                    break
                nursery.cancel_scope.cancel()
    finally:
        server.close()
