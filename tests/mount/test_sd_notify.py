"""Telling systemd."""

import socket
from pathlib import Path

from s3fs_meta.mount.sd_notify import notify


def test_state_reaches_the_socket(tmp_path: Path) -> None:
    """One datagram with the text."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)

        assert notify("READY=1", path)
        assert listener.recv(100) == b"READY=1"


def test_abstract_address_is_understood() -> None:
    """The address need not be a file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("")  # the kernel chooses an abstract name
        name = listener.getsockname().decode()

        assert notify("STOPPING=1", "@" + name[1:])
        assert listener.recv(100) == b"STOPPING=1"


def test_notify_without_socket_is_ignored(tmp_path: Path) -> None:
    """Most mounts are not started by systemd."""
    assert not notify("READY=1", "")
    assert not notify("READY=1", str(tmp_path / "missing"))
