"""Tests of an attacker who replaces an encrypted superblock with a plain one of the same UUID."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.superblock import KEY
from tests.cli.conftest import Place
from tests.programs import Program

pytestmark = [pytest.mark.mount, pytest.mark.slow]

NAMES = ("superblock", "superblock-copy")
ENTRANCES = [
    ["mount"],
    ["mount", "-o", "ro"],
    ["mount", "-o", "ro,follow"],
    ["mount", "-o", "at=txg=1"],
    ["fsck", "-n"],
    ["fsck", "-p"],
    ["fsck", "-y", "--rebuild"],
    ["restore", "--to", "copy"],
    ["log"],
    ["rollback", "--yes", "--at", "txg=1"],
    ["reclaim"],
    ["retention"],
    ["retention", "TIME"],
    ["status"],
    ["passphrase", "--new-passphrase-file", "new"],
    ["recover-key", "--recovery-key-file", "new", "--new-passphrase-file", "new"],
]


@pytest.fixture
def exchanged(empty: Place, program: Program) -> Place:
    """Return an encrypted filesystem whose superblock was replaced with an unencrypted one."""
    program.environment["S3FS_META_PASSPHRASE"] = "one"
    empty.mountpoint.with_name("new").write_text("two\n")
    program.ok("mkfs", empty.url)
    program.ok("mount", empty.url, empty.mountpoint)
    (empty.mountpoint / "file").write_bytes(b"secret" * 1000)
    program.ok("umount", empty.mountpoint)
    _exchange(empty)
    return empty


def _exchange(place: Place) -> None:
    real = superblock_codec.decode(KEY, (place.bucket / NAMES[0]).read_bytes())
    made, _keyring, _key = superblock_codec.create(
        real.uuid, real.label, real.block_bytes, real.page_size, False, None
    )
    for name in NAMES:
        (place.bucket / name).write_bytes(superblock_codec.encode(replace(made, generation=9)))


def _objects(place: Place) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in place.bucket.rglob("*")
        if path.is_file() and path.parent.name != "tmp"
    }


def _words(entrance: list[str], place: Place) -> list[str | Path]:
    """Return an entry of ENTRANCES as the command line for a filesystem."""
    beside = place.mountpoint.parent
    words = [beside / word if word in {"copy", "new"} else word for word in entrance]
    if entrance == ["retention", "TIME"]:
        return ["retention", place.url, "1d"]
    return [*words, place.url, *([place.mountpoint] if entrance[0] == "mount" else [])]


@pytest.mark.parametrize("here", [True, False], ids=["seen", "new"])
def test_every_command_with_a_passphrase_refuses_an_unencrypted_superblock(
    program: Program, exchanged: Place, here: bool
) -> None:
    if not here:
        program.cachedir = program.cachedir.with_name("elsewhere")
    before = _objects(exchanged)

    for entrance in ENTRANCES:
        if not here and entrance == ["retention"]:
            continue  # The retention command prints the retention without a key.
        refused = program.run(*_words(entrance, exchanged))
        assert refused.returncode not in {0, 1}, entrance
        # With local state, fsck --rebuild uses the superblock with the local keys.
        if not here or "--rebuild" not in entrance:
            assert "not encrypted" in refused.stderr, (entrance, refused.stderr)
        assert _objects(exchanged) == before, entrance


def test_every_command_on_a_host_that_knows_the_keys_refuses_an_unencrypted_superblock(
    program: Program, exchanged: Place
) -> None:
    before = _objects(exchanged)
    del program.environment["S3FS_META_PASSPHRASE"]
    for entrance in ENTRANCES[:-2]:
        refused = program.run(*_words(entrance, exchanged))
        assert refused.returncode not in {0, 1}, entrance
        # fsck --rebuild asks for the passphrase of the encrypted superblock.
        if "--rebuild" not in entrance:
            assert "not encrypted" in refused.stderr, entrance
        assert _objects(exchanged) == before, entrance

    program.environment["S3FS_META_PASSPHRASE"] = "one"
    assert program.run("fsck", "-y", exchanged.url).returncode == 1
    program.ok("fsck", "-n", "--deep", exchanged.url)
    program.ok("mount", exchanged.url, exchanged.mountpoint)
    assert (exchanged.mountpoint / "file").read_bytes() == b"secret" * 1000
    program.ok("umount", exchanged.mountpoint)
    _require_encrypted(exchanged)


def test_mount_and_follower_keep_their_keys_if_the_superblock_is_replaced(
    program: Program, exchanged: Place
) -> None:
    """A mount and a follower keep their keys during reclaim, promote and unmount."""
    assert program.run("fsck", "-y", exchanged.url).returncode == 1
    program.ok("mount", exchanged.url, exchanged.mountpoint)
    follower = Program(program.cachedir.with_name("follower"))
    follower.environment = program.environment
    mnt = exchanged.mountpoint.with_name("following")
    mnt.mkdir()
    follower.ok("mount", "-o", "ro,follow", exchanged.url, mnt)
    try:
        _exchange(exchanged)
        (exchanged.mountpoint / "more").write_bytes(b"more" * 1000)
        program.ok("flush", exchanged.mountpoint)
        program.ok("reclaim", exchanged.mountpoint)
        program.ok("umount", exchanged.mountpoint)
        follower.ok("promote", mnt)
        (mnt / "and more").write_bytes(b"and more" * 1000)
    finally:
        follower.ok("umount", mnt)
    _require_encrypted(exchanged)


def _require_encrypted(place: Place) -> None:
    """Require that the header of every metadata object and pack has the encryption flag.

    Source: docs/design/format.md.
    """
    checked = 0
    for path, data in _objects(place).items():
        key = str(path.relative_to(place.bucket))
        if key.startswith("pack/"):
            (flags,) = struct.unpack(">H", data[-42:-40])
        elif key in {*NAMES, "lease"}:
            continue
        else:
            assert data.startswith(b"S3FSMETA"), key
            (flags,) = struct.unpack(">H", data[10:12])
        assert flags == 1, f"{key} is not encrypted"
        checked += 1
    assert checked > 3
