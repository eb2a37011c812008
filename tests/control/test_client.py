"""The command line's end of the control socket."""

import socket
from pathlib import Path

import pytest
import trio

from s3fs_meta.control import client
from s3fs_meta.errors import ControlError, NotMountedError


async def test_no_directory_means_not_mounted(tmp_path: Path) -> None:
    """A filesystem that this host never mounted."""
    with pytest.raises(NotMountedError):
        await client.call(tmp_path / "missing", "status")


async def test_no_socket_means_not_mounted(tmp_path: Path) -> None:
    """Mounted once, not now."""
    with pytest.raises(NotMountedError):
        await client.call(tmp_path, "status")


async def test_dead_socket_means_not_mounted(tmp_path: Path) -> None:
    """A killed mount leaves its socket file."""
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "control.sock"))
    left.close()

    with pytest.raises(NotMountedError):
        await client.call(tmp_path, "status")


async def test_mount_that_dies_before_it_answers_is_an_error(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """Hanging up is never mistaken for success."""
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
