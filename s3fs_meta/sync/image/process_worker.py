"""The restoring process: restores one database with objects that the daemon reads for it.

Owns: the store whose requests the daemon carries out, and the run of one restore.
Does not know: credentials, the server of the URL, the daemon's database.
Keeps: the process exits when the daemon closes the connection.
Design: docs/design/performance.md, "Restores of the past".
"""

import base64
import logging
import os
import socket
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import trio
from typing_extensions import override

from s3fs_meta.codec.image import ManifestRef
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.limits import LIST_PAGE_KEYS
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.contract import ETag, Fetched, ObjectInfo
from s3fs_meta.sync.image.process_messages import (
    Connection,
    Message,
    error_of,
    fields_of_error,
)
from s3fs_meta.sync.image.restore import Restorer
from s3fs_meta.sync.progress import no_progress

_LOG_RECORDS_MAX: Final = 100
# Exit status if the daemon closed the connection, or sent a message that is too long.
_DAEMON_ENDED: Final = 3


class DaemonStore:
    """A read-only store whose requests the daemon carries out."""

    def __init__(self, connection: Connection, url: str) -> None:
        self._connection = connection
        self._url = url
        self._last = 0
        self._waiting: dict[int, trio.MemorySendChannel[Message]] = {}

    @property
    def url(self) -> str:
        """Return the URL of the daemon's store."""
        return self._url

    @property
    def has_own_clock(self) -> bool:
        """Return False, because a restore needs no clock."""
        return False

    @property
    def endpoint(self) -> str:
        """Return an empty string, because this process does not connect to a server."""
        return ""

    async def ask(self, **fields: Any) -> Message:
        """Send a request to the daemon and return its reply, or raise the error in the reply."""
        self._last += 1
        number = self._last
        send, receive = trio.open_memory_channel[Message](1)
        self._waiting[number] = send
        try:
            await self._connection.send({"number": number, **fields})
            reply = await receive.receive()
        finally:
            del self._waiting[number]
        if "error" in reply.fields:
            raise error_of(reply.fields)
        return reply

    def replied(self, reply: Message) -> None:
        """Pass a reply to the task that waits for it, unless that task was cancelled."""
        waiting = self._waiting.get(reply.fields["number"])
        if waiting is not None:
            waiting.send_nowait(reply)

    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        """Return a complete object."""
        reply = await self.ask(request="get", key=key, max_bytes=max_bytes)
        return Fetched(reply.body, reply.fields["etag"])

    async def get_range(self, key: ObjectKey, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)`` of an object."""
        return (await self.ask(request="get_range", key=key, start=start, stop=stop)).body

    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield objects in the order of their keys; the daemon lists one page per request."""
        while True:
            reply = await self.ask(request="list", prefix=prefix, after=after)
            for row in reply.fields["page"]:
                yield ObjectInfo(*row)
            if len(reply.fields["page"]) < LIST_PAGE_KEYS:
                return
            after = reply.fields["page"][-1][0]

    async def reserve(self, size_bytes: int) -> None:
        """Reserve disk space for an image. Raises NoSpaceLeftError."""
        await self.ask(request="reserve", size_bytes=size_bytes)

    async def close(self) -> None:
        """Do nothing, because the connection is closed when the process exits."""
        await trio.lowlevel.checkpoint()

    async def now_ns(self) -> NoReturn:
        """Refuse the request, because a restore needs no clock."""
        raise NotImplementedError("now_ns")

    async def put(self, key: ObjectKey, data: bytes | memoryview) -> NoReturn:
        """Refuse the request, because a restore writes no object."""
        raise NotImplementedError("put")

    async def create(self, key: ObjectKey, data: bytes | memoryview) -> NoReturn:
        """Refuse the request, because a restore writes no object."""
        raise NotImplementedError("create")

    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> NoReturn:
        """Refuse the request, because a restore writes no object."""
        raise NotImplementedError("replace")

    async def delete(self, keys: Sequence[ObjectKey]) -> NoReturn:
        """Refuse the request, because a restore deletes no object."""
        raise NotImplementedError("delete")


class _LogToDaemon(logging.Handler):
    """Passes log records to the daemon, which logs them."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[str, int, str]] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if len(self.records) < _LOG_RECORDS_MAX:
            self.records.append((record.name, record.levelno, record.getMessage()))


def main(requests: int) -> None:
    """Restore the database that the first message describes."""
    trio.run(_serve, socket.socket(fileno=requests))


async def _serve(stream: socket.socket) -> None:
    connection = Connection(trio.SocketStream(trio.socket.from_stdlib_socket(stream)))
    first = await connection.receive()
    if first is None:
        return
    store = DaemonStore(connection, first.fields["url"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_receive, connection, store)
        await connection.send(await _restored(store, first.fields))
        # When the daemon has the result, it closes the connection, and ``_receive`` exits.
        await trio.sleep_forever()


async def _receive(connection: Connection, store: DaemonStore) -> NoReturn:
    while True:
        reply = await connection.receive()
        if reply is None:
            # Do not wait for other threads, because one may be in a long call to SQLite.
            os._exit(_DAEMON_ENDED)
        store.replied(reply)


async def _restored(store: DaemonStore, wanted: dict[str, Any]) -> dict[str, Any]:
    """Restore a database; return the message with the result or the error."""
    notes = _LogToDaemon()
    logging.getLogger().addHandler(notes)
    keys = [None if one is None else base64.b64decode(one) for one in wanted["keys"]]
    assert keys[1] is not None, "every filesystem has a key for hashes"
    newest = None if wanted["newest"] is None else ManifestRef(*wanted["newest"])
    restorer = Restorer(
        store,
        Keyring(keys[0], keys[1]),
        wanted["uuid"],
        no_progress,
        reserve=store.reserve,
        is_temporary=True,
    )
    try:
        link = await restorer.restore(newest, Path(wanted["target"]), Txg(wanted["upto"]))
        result: dict[str, Any] = {"link": link, "notices": restorer.notices}
    except Exception as exc:  # noqa: BLE001 - the daemon raises it
        result = fields_of_error(exc)
    return {**result, "log": notes.records}
