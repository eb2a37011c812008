"""Restoring a database in a separate process, so that the daemon's requests do not wait for it.

Owns: starting, serving and stopping the process. Does not know: how a database is restored.
Keeps: the process has no credentials. The daemon reads the objects for the process, with the
daemon's retries, limits and counts. The process receives the keys of the filesystem through its
socket.
Tasks: the main thread must start the process, because the process exits with the thread that
started it.
Design: docs/design/performance.md, "Restores of the past".
"""

import base64
import errno
import logging
import os
import signal
import socket
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import trio

from s3fs_meta.background_task import exit_of
from s3fs_meta.codec.image import ManifestRef
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import S3fsError
from s3fs_meta.limits import KEY_BYTES_MAX, LIST_PAGE_KEYS, RESTORER_END_S_MAX
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.image.process_messages import (
    Connection,
    Message,
    error_of,
    fields_of_error,
)
from s3fs_meta.sync.image.restore import Reserve

_SCRIPT: Final = Path(__file__).with_name("process_script.py")
# environment variables to pass on; all others may contain a secret
_INHERITED: Final = ("LD_LIBRARY_PATH", "PATH", "TMPDIR")

# timeout of ``end``, which waits at most twice for RESTORER_END_S_MAX
_END_S_MAX: Final = 3 * RESTORER_END_S_MAX


class ProcessRestorer:
    """Restores databases as ``Restorer`` does, but each in a separate process."""

    def __init__(
        self, store: ObjectStore, keyring: Keyring, uuid: str, *, reserve: Reserve | None = None
    ) -> None:
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        self._reserve = reserve
        self.notices: list[str] = []  # facts to show to the user, one line each

    async def restore(self, newest: ManifestRef | None, target: Path, upto: Txg) -> Link:
        """Restore a database to *target* in a separate process.

        Raises:
            The same errors as ``Restorer.restore``.
            OSError: the process cannot be started, or was killed.
        """
        process = _Process()
        result, ends_itself, status = None, False, None
        try:
            await process.connection.send(
                {
                    "url": self._store.url,
                    "keys": _encoded(self._keyring),
                    "uuid": self._uuid,
                    "newest": newest,
                    "upto": upto,
                    "target": os.fspath(target),
                }
            )
            result = await self._served(process.connection)
            ends_itself = result is None
        except trio.BrokenResourceError:
            ends_itself = True
        finally:
            with trio.move_on_after(_END_S_MAX, shield=True):
                status = await process.end(ends_itself=ends_itself)
        if result is None:
            raise OSError(
                errno.EIO, f"the process that restores the database failed: {_described(status)}"
            )
        for name, level, text in result["log"]:
            logging.getLogger(name).log(level, "%s", text)
        if "error" in result:
            raise error_of(result)
        self.notices += result["notices"]
        return Link(*result["link"])

    async def _served(self, connection: Connection) -> dict[str, Any] | None:
        """Carry out the requests of the process; return its result, or None if it has exited."""
        async with trio.open_nursery() as nursery:
            message = await connection.receive()
            while message is not None and "request" in message.fields:
                nursery.start_soon(self._reply, connection, message)
                message = await connection.receive()
            nursery.cancel_scope.cancel()
        return None if message is None else message.fields

    async def _reply(self, connection: Connection, message: Message) -> None:
        body: bytes | memoryview = b""
        try:
            reply, body = await self._answer(message.fields)
        except (S3fsError, OSError) as exc:
            reply = fields_of_error(exc)
        try:
            await connection.send({**reply, "number": message.fields["number"]}, body)
        except trio.BrokenResourceError:
            return  # ``_served`` detects the end of the connection

    async def _answer(self, wanted: dict[str, Any]) -> tuple[dict[str, Any], bytes | memoryview]:
        match wanted["request"]:
            case "get":
                fetched = await self._store.get(ObjectKey(wanted["key"]), wanted["max_bytes"])
                return {"etag": fetched.etag}, fetched.data
            case "get_range":
                key, start, stop = wanted["key"], wanted["start"], wanted["stop"]
                return {}, await self._store.get_range(ObjectKey(key), start, stop)
            case "list":
                page = await self._page(wanted["prefix"], wanted["after"])
                return {"page": page}, b""
            case "reserve":
                if self._reserve is not None:
                    await self._reserve(wanted["size_bytes"])
                return {}, b""
            case other:
                raise AssertionError(f"the restoring process sent an unknown request: {other!r}")

    async def _page(self, prefix: str, after: str) -> list[tuple[str, int, int | None]]:
        """Return the next keys of a listing, except foreign keys, which may be too long."""
        page: list[tuple[str, int, int | None]] = []
        async with aclosing(self._store.list(prefix, after=after)) as listing:
            async for info in listing:
                if len(info.key) <= KEY_BYTES_MAX and info.key.isascii() and info.key.isprintable():
                    page.append(info)
                    if len(page) == LIST_PAGE_KEYS:
                        break
        return page


def _encoded(keyring: Keyring) -> list[str | None]:
    keys = keyring.master_key if keyring.encrypted else None, keyring.hash_key
    return [None if key is None else base64.b64encode(key).decode() for key in keys]


def _described(status: int | None) -> str:
    if status is None:
        return "it does not respond"
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)}"
    return f"exit status {os.waitstatus_to_exitcode(status)}"


class _Process:
    """One restoring process, and the daemon's connection to it."""

    def __init__(self) -> None:
        """Start the restoring process.

        Raises:
            OSError: the process cannot be started.
        """
        command = [sys.executable, "-I", str(_SCRIPT), str(os.getpid()), *sys.path]
        environment = {key: os.environ[key] for key in _INHERITED if key in os.environ}
        ours, theirs = socket.socketpair()
        with theirs:
            streams = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
            try:
                # A separate session keeps ^C at a foreground mount from killing the process.
                self._pid = os.posix_spawn(
                    sys.executable, command, environment, file_actions=streams, setsid=True
                )
            except BaseException:
                ours.close()
                raise
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        self.connection = Connection(self._stream)

    async def end(self, *, ends_itself: bool) -> int | None:
        """Stop the process; return its wait status, or None if the process does not exit.

        Args:
            ends_itself: True if the process has closed the connection, so it will exit by itself
                with a status that gives the reason.
        """
        status: int | None = None
        self._stream.socket.close()
        if ends_itself:
            status = await exit_of(self._pid, RESTORER_END_S_MAX)
        if status is None:
            os.kill(self._pid, signal.SIGKILL)
            status = await exit_of(self._pid, RESTORER_END_S_MAX)
        return status
