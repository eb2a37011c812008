"""Tests of the identity of the machine, and of its current boot."""

import os
from pathlib import Path

import pytest

from s3fs_meta import machine
from s3fs_meta.machine import UNKNOWN, Machine, this_machine


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a directory for the identity files of a machine that is not a container."""
    monkeypatch.setattr(machine, "MACHINE_ID", tmp_path / "machine-id")
    monkeypatch.setattr(machine, "PRODUCT_UUID", tmp_path / "product_uuid")
    monkeypatch.setattr(machine, "CONTAINER_MARKS", (tmp_path / "containerenv",))
    monkeypatch.delenv("container", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return tmp_path


def test_machine_id_and_product_uuid_are_read(files: Path) -> None:
    """Machine id and product UUID are read without line ends. The UUID becomes lower case."""
    (files / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    (files / "product_uuid").write_text("4C4C4544-0051-3010-8054-B4C04F4A5931\n")

    assert this_machine() == Machine(
        "0123456789abcdef0123456789abcdef", "4c4c4544-0051-3010-8054-b4c04f4a5931"
    )


def test_machine_identity_is_unknown_without_identity_files(files: Path) -> None:
    """If an identity file is missing or unreadable, the identity is unknown."""
    assert not list(files.iterdir())
    assert this_machine() == UNKNOWN


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"uninitialized\n",
        b"00000000-0000-0000-0000-000000000000\n",
        b"FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF\n",
        b"\xff\xfe",
    ],
    ids=repr,
)
def test_placeholder_machine_ids_are_ignored(files: Path, text: bytes) -> None:
    """An identity that many machines share is treated as missing."""
    (files / "machine-id").write_bytes(text)
    (files / "product_uuid").write_bytes(text)

    assert this_machine() == UNKNOWN


def test_machine_identity_file_is_read_only_up_to_a_limit(files: Path) -> None:
    (files / "machine-id").write_bytes(b"a" * 1000)

    assert len(this_machine().machine_id or "") == 128


@pytest.mark.parametrize("mark", ["containerenv", "container", "KUBERNETES_SERVICE_HOST"])
def test_container_has_no_machine_identity(
    files: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container, the identity files of the image or of the host are ignored."""
    (files / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    assert this_machine() != UNKNOWN
    if mark == "containerenv":
        (files / mark).write_text("")
    else:
        monkeypatch.setenv(mark, "here")

    assert this_machine() == UNKNOWN


def test_boot_id_is_constant_until_a_reboot() -> None:
    """Two calls return the same boot id, without a line end."""
    assert machine.this_boot() == machine.this_boot() == machine.this_boot().strip() != ""


def test_boot_id_is_read_again_by_each_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "BOOT_ID", tmp_path / "boot_id")
    machine.BOOT_ID.write_text("another\n")

    assert machine.this_boot() == "another"


def _attach(devices: Path, directory: Path, sequence: str, *, partition: bool = False) -> None:
    """Create the sysfs entry of the disk that contains a directory."""
    device = directory.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    disk = devices / "devices" / "disk"
    place = disk / "part" if partition else disk
    place.mkdir(parents=True, exist_ok=True)
    (disk / "diskseq").write_text(f"{sequence}\n")
    (devices / name).unlink(missing_ok=True)
    (devices / name).symlink_to(place)


@pytest.mark.parametrize("partition", [False, True])
def test_disk_that_was_detached_and_attached_again_has_lost_its_unwritten_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition: bool
) -> None:
    monkeypatch.setattr(machine, "BLOCK_DEVICES", tmp_path / "sysfs")
    state, copy = tmp_path / "state", tmp_path / "copy"
    state.mkdir()
    copy.mkdir()
    _attach(tmp_path / "sysfs", state, "7", partition=partition)
    before = machine.memory_of(state)
    assert not machine.has_forgotten(before, machine.memory_of(state))

    _attach(tmp_path / "sysfs", state, "8", partition=partition)
    assert machine.has_forgotten(before, machine.memory_of(state))
    assert not machine.has_forgotten(before, machine.memory_of(copy)), "copying must lose no pages"


def test_unwritten_pages_of_an_unknown_disk_are_lost_only_at_a_reboot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk is unknown, as on a network filesystem, only a reboot loses unwritten pages."""
    monkeypatch.setattr(machine, "BLOCK_DEVICES", tmp_path / "sysfs")
    alone = machine.memory_of(tmp_path)
    assert alone == machine.this_boot()
    _attach(tmp_path / "sysfs", tmp_path, "7")
    assert not machine.has_forgotten(alone, machine.memory_of(tmp_path))
    assert machine.has_forgotten("another boot", machine.memory_of(tmp_path))
    assert machine.has_forgotten(None, machine.memory_of(tmp_path))
