"""Tests of a superblock that is deleted, damaged or replaced, while mounted or between mounts."""

import pytest

from tests.cli.conftest import Place
from tests.programs import Program

pytestmark = [pytest.mark.mount, pytest.mark.slow]

NAMES = ("superblock", "superblock-copy")
CONTENT = b"all that matters" * 1000


@pytest.fixture
def encrypted(empty: Place, program: Program) -> Place:
    """Return an encrypted filesystem whose passphrase is in the environment."""
    program.environment["S3FS_META_PASSPHRASE"] = "one"
    program.ok("mkfs", empty.url)
    return empty


def _objects(place: Place) -> list[bytes | None]:
    paths = [place.bucket / name for name in NAMES]
    return [path.read_bytes() if path.exists() else None for path in paths]


def _delete(place: Place) -> None:
    for name in NAMES:
        (place.bucket / name).unlink()


def test_unmount_restores_deleted_superblock_objects(program: Program, encrypted: Place) -> None:
    """The unmount uploads deleted superblock objects again, so another host can mount."""
    healthy = _objects(encrypted)
    program.ok("mount", encrypted.url, encrypted.mountpoint)
    (encrypted.mountpoint / "file").write_bytes(CONTENT)
    _delete(encrypted)

    program.ok("umount", encrypted.mountpoint)

    assert _objects(encrypted) == healthy
    elsewhere = type(program)(program.cachedir.with_name("elsewhere"))
    elsewhere.environment = program.environment
    elsewhere.ok("mount", encrypted.url, encrypted.mountpoint)
    assert (encrypted.mountpoint / "file").read_bytes() == CONTENT
    elsewhere.ok("umount", encrypted.mountpoint)


def test_mount_after_a_kill_restores_the_deleted_superblock(
    program: Program, encrypted: Place
) -> None:
    """A writable mount uploads this host's copy of the deleted superblock. mount -o ro does not."""
    healthy = _objects(encrypted)
    program.ok("mount", encrypted.url, encrypted.mountpoint)
    (encrypted.mountpoint / "file").write_bytes(CONTENT)
    program.ok("flush", encrypted.mountpoint)
    program.kill(encrypted.mountpoint)
    _delete(encrypted)

    program.ok("mount", "-o", "ro", encrypted.url, encrypted.mountpoint)
    assert (encrypted.mountpoint / "file").read_bytes() == CONTENT
    program.run("umount", encrypted.mountpoint)  # A read-only mount uploads nothing.
    assert _objects(encrypted) == [None, None]

    mounted = program.run("mount", encrypted.url, encrypted.mountpoint)
    assert mounted.returncode == 0
    assert "was missing; it was stored again" in mounted.stderr
    assert (encrypted.mountpoint / "file").read_bytes() == CONTENT
    program.ok("umount", encrypted.mountpoint)
    assert _objects(encrypted) == healthy


def test_changed_passphrase_is_kept_if_the_superblock_is_deleted(
    program: Program, encrypted: Place
) -> None:
    """The mount uploads the superblock with the new passphrase, not the one from mount time."""
    new = encrypted.mountpoint.with_name("new")
    new.write_text("two\n")
    program.ok("mount", encrypted.url, encrypted.mountpoint)
    old = _objects(encrypted)
    program.ok("passphrase", "--new-passphrase-file", new, encrypted.url)
    changed = _objects(encrypted)
    assert changed[0] == changed[1]
    assert changed != old
    _delete(encrypted)

    program.ok("umount", encrypted.mountpoint)

    assert _objects(encrypted) == changed
    for name, data in zip(NAMES, old, strict=True):
        (encrypted.bucket / name).write_bytes(data or b"")
    for passphrase in ("one", "two"):
        program.environment["S3FS_META_PASSPHRASE"] = passphrase
        refused = program.run("mount", encrypted.url, encrypted.mountpoint)
        assert refused.returncode != 0
        assert "an older superblock was put back" in refused.stderr
    program.run("fsck", "-y", encrypted.url)
    assert _objects(encrypted) == changed
