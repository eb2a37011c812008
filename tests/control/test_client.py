"""Tests of the client of the control socket."""

import socket
from pathlib import Path

import pytest
import trio

from s3fs_meta.control import client
from s3fs_meta.errors import ControlError
from s3fs_meta.mount_errors import NotMountedError
from tests.polling import WAIT_S_MAX


async def test_control_client_raises_not_mounted_without_a_state_directory(tmp_path: Path) -> None:
    """If this host never mounted the filesystem, the state directory does not exist."""
    with pytest.raises(NotMountedError):
        await client.call(tmp_path / "missing", "status")


async def test_control_client_raises_not_mounted_if_no_socket_exists(tmp_path: Path) -> None:
    """After an unmount the control socket does not exist."""
    with pytest.raises(NotMountedError):
        await client.call(tmp_path, "status")


async def test_control_client_raises_not_mounted_if_no_process_listens(tmp_path: Path) -> None:
    """A killed daemon leaves its socket file behind."""
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "control.sock"))
    left.close()

    with pytest.raises(NotMountedError):
        await client.call(tmp_path, "status")


async def test_control_call_raises_control_error_if_the_daemon_dies(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """A connection that the daemon closes without an answer raises ControlError."""
    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(str(tmp_path / "control.sock"))
    listener.listen()

    async def die() -> None:
        connection, _ = await listener.accept()
        await connection.recv(1000)
        connection.close()
        listener.close()

    nursery.start_soon(die)

    with pytest.raises(ControlError, match="ended before it answered"):
        await client.call(tmp_path, "flush")


async def test_cancelled_control_client_closes_its_connection(tmp_path: Path) -> None:
    """A client that is cancelled before the server accepts its connection closes the connection."""
    path = str(tmp_path / "control.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)  # The queue of the listening socket is now full.
        with trio.move_on_after(0.1) as scope:
            await client.call(tmp_path, "status")
        assert scope.cancelled_caught

        listener.settimeout(WAIT_S_MAX)
        listener.accept()[0].close()
        connection, _ = await trio.to_thread.run_sync(listener.accept)
        with connection:
            connection.settimeout(WAIT_S_MAX)
            assert await trio.to_thread.run_sync(connection.recv, 100) == b""
