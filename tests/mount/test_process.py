"""The process of a mount: open files, garbage collection, messages to systemd."""

import gc
import resource
import socket
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.limits import OPEN_FILES_WANTED
from s3fs_meta.mount import process
from s3fs_meta.mount.process import notify


@pytest.fixture(autouse=True)
def bounds() -> Iterator[tuple[int, int]]:
    """Return the limits of this process, and restore them."""
    found = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield found
    resource.setrlimit(resource.RLIMIT_NOFILE, found)


@pytest.mark.parametrize("soft", [1024, OPEN_FILES_WANTED])
def test_low_soft_limit_is_raised(bounds: tuple[int, int], soft: int) -> None:
    """The soft limit is raised only as far as needed."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, bounds[1]))

    process.raise_open_files()

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (OPEN_FILES_WANTED, bounds[1])


def test_higher_limit_is_kept(bounds: tuple[int, int]) -> None:
    """The administrator chose it."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES_WANTED + 1, bounds[1]))

    process.raise_open_files()

    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == OPEN_FILES_WANTED + 1


def test_hard_limit_is_respected(bounds: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower hard limit is no error."""
    monkeypatch.setattr(process, "OPEN_FILES_WANTED", bounds[1] + 1)

    process.raise_open_files()

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (bounds[1], bounds[1])


class Node:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thaw() -> Iterator[None]:
    """Let the collector track everything again."""
    yield
    gc.unfreeze()


def test_older_objects_are_not_visited_again() -> None:
    """Earlier garbage is freed, and later collections visit only new objects."""
    garbage = weakref.ref(Node())
    process.exempt_objects()

    assert garbage() is None
    assert gc.get_freeze_count() > 1000
    assert len(gc.get_objects()) < 1000


def test_later_objects_are_collected() -> None:
    """Reference cycles made by requests must not accumulate."""
    process.exempt_objects()
    later = weakref.ref(Node())

    gc.collect()

    assert later() is None


def test_state_reaches_the_socket(tmp_path: Path) -> None:
    """The state is sent as one datagram."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)

        assert notify("READY=1", path)
        assert listener.recv(100) == b"READY=1"


def test_abstract_address_is_supported() -> None:
    """The address need not be a file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("")  # the kernel chooses an abstract name
        name = listener.getsockname().decode()

        assert notify("STOPPING=1", "@" + name[1:])
        assert listener.recv(100) == b"STOPPING=1"


def test_notify_without_socket_is_ignored(tmp_path: Path) -> None:
    """Without a systemd socket a notification is ignored."""
    assert not notify("READY=1", "")
    assert not notify("READY=1", str(tmp_path / "missing"))
