"""Telling machines apart."""

from pathlib import Path

import pytest

from s3fs_meta import machine
from s3fs_meta.machine import UNKNOWN, Machine, this_machine


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Put a directory over the path where a machine says what it is; it is no container."""
    monkeypatch.setattr(machine, "MACHINE_ID", tmp_path / "machine-id")
    monkeypatch.setattr(machine, "PRODUCT_UUID", tmp_path / "product_uuid")
    monkeypatch.setattr(machine, "CONTAINER_MARKS", (tmp_path / "containerenv",))
    monkeypatch.delenv("container", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return tmp_path


def test_both_identities_are_read(files: Path) -> None:
    """Without the line's end, in lower case: firmware differs in how it writes a UUID."""
    (files / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    (files / "product_uuid").write_text("4C4C4544-0051-3010-8054-B4C04F4A5931\n")

    assert this_machine() == Machine(
        "0123456789abcdef0123456789abcdef", "4c4c4544-0051-3010-8054-b4c04f4a5931"
    )


def test_missing_files_are_unknown(files: Path) -> None:
    """A user other than root cannot read the second."""
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
def test_values_that_say_nothing_are_unknown(files: Path, text: bytes) -> None:
    """They are the same on many machines."""
    (files / "machine-id").write_bytes(text)
    (files / "product_uuid").write_bytes(text)

    assert this_machine() == UNKNOWN


def test_size_of_what_is_read_is_bounded(files: Path) -> None:
    """The file may be anything."""
    (files / "machine-id").write_bytes(b"a" * 1000)

    assert len(this_machine().machine_id or "") == 128


@pytest.mark.parametrize("mark", ["containerenv", "container", "KUBERNETES_SERVICE_HOST"])
def test_container_is_an_unknown_machine(
    files: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are of its image or of its host, and it may run elsewhere tomorrow."""
    (files / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    assert this_machine() != UNKNOWN
    if mark == "containerenv":
        (files / mark).write_text("")
    else:
        monkeypatch.setenv(mark, "here")

    assert this_machine() == UNKNOWN


def test_boot_has_a_number_that_stays() -> None:
    """Without the line's end, so that it can stand in a row."""
    assert machine.this_boot() == machine.this_boot() == machine.this_boot().strip() != ""


def test_another_boot_has_another_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is read each time, from the file that tests put in its place."""
    monkeypatch.setattr(machine, "BOOT_ID", tmp_path / "boot_id")
    machine.BOOT_ID.write_text("another\n")

    assert machine.this_boot() == "another"
