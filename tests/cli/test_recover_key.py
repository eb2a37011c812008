"""The recover-key command, which sets a new passphrase with the recovery key."""

import json
import os

import pytest

from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX
from tests.programs import Program


@pytest.mark.slow
def test_recovery_key_allows_the_user_to_set_a_new_passphrase(
    program: Program, empty: Place
) -> None:
    """The user may type the recovery key in lower case and without dashes."""
    key_file, new = empty.mountpoint.with_name("key"), empty.mountpoint.with_name("new")
    program.environment["S3FS_META_PASSPHRASE"] = "forgotten"
    recovery_key = json.loads(program.ok("mkfs", "--json", empty.url))["recovery_key"]
    key_file.write_text(recovery_key.lower().replace("-", " ") + "\n")
    new.write_text("remembered\n")

    words = f"recover-key --recovery-key-file {key_file} --new-passphrase-file {new}".split()
    program.ok(*words, empty.url, here=False)

    program.environment["S3FS_META_PASSPHRASE"] = "remembered"
    assert program.status(empty.url)["image"]["pieces"] == 1


def test_recover_key_without_a_terminal_requires_a_file(program: Program, empty: Place) -> None:
    """Without a terminal, recover-key asks for --recovery-key-file."""
    program.environment["S3FS_META_PASSPHRASE"] = "forgotten"
    program.ok("mkfs", empty.url)

    done = program.run("recover-key", empty.url, here=False)

    assert done.returncode == 4
    assert "--recovery-key-file" in done.stderr
    assert " --passphrase-file" not in done.stderr


@pytest.mark.slow
def test_wrong_recovery_key_changes_nothing(program: Program, empty: Place) -> None:
    """For a wrong recovery key the command exits with 4, and the passphrase stays valid."""
    key_file = empty.mountpoint.with_name("key")
    key_file.write_text("AAAAAA-AAAAAA\n")
    program.environment["S3FS_META_PASSPHRASE"] = "kept"
    program.ok("mkfs", empty.url)

    words = f"recover-key --recovery-key-file {key_file} --new-passphrase-file {key_file}".split()
    assert program.run(*words, empty.url, here=False).returncode == 4

    assert program.status(empty.url)["image"]["pieces"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("by", ["passphrase", "recovery key"])
def test_renewed_recovery_key_replaces_the_old_key(program: Program, empty: Place, by: str) -> None:
    """After recover-key --renew only the new key is valid; the passphrase does not change."""
    beside = empty.mountpoint.parent
    program.environment["S3FS_META_PASSPHRASE"] = "kept"
    old = json.loads(program.ok("mkfs", "--json", empty.url))["recovery_key"]
    (beside / "old").write_text(old)
    (beside / "passphrase").write_text("two")
    words = ["--recovery-key-file", str(beside / "old")] if by == "recovery key" else []

    shown = program.ok("recover-key", "--renew", *words, empty.url)

    assert "still opens with the old key" in shown
    [new] = [line.strip() for line in shown.splitlines() if line.startswith("    ")]
    assert new != old
    (beside / "new").write_text(new)
    assert program.status(empty.url)["image"]["pieces"] == 1
    change = f"recover-key --new-passphrase-file {beside}/passphrase --recovery-key-file".split()
    assert program.run(*change, beside / "old", empty.url).returncode == 4
    program.ok(*change, beside / "new", empty.url)


@pytest.mark.parametrize("output", ["full disk", "closed pipe"])
def test_recovery_key_that_cannot_be_printed_is_not_used(
    program: Program, empty: Place, output: str
) -> None:
    """If a new recovery key cannot be printed, it is lost, so the old key must stay valid."""
    program.environment["S3FS_META_PASSPHRASE"] = "kept"
    program.ok("mkfs", empty.url)
    before = (empty.bucket / "superblock").read_bytes()

    words = ("recover-key", "--renew", "--cachedir", program.cachedir, empty.url)
    reader, closed_pipe = os.pipe()
    os.close(reader)
    streams = {"full disk": os.open("/dev/full", os.O_WRONLY), "closed pipe": closed_pipe}
    with program.begin(*words, stdout=streams[output]) as process:
        _, said = process.communicate(timeout=PROCESS_S_MAX)
    for fd in streams.values():
        os.close(fd)

    assert (process.returncode, "the old recovery key stays valid" in said) == (14, True)
    assert (empty.bucket / "superblock").read_bytes() == before


def test_recover_key_command_refuses_contradictory_options(program: Program, empty: Place) -> None:
    some = str(empty.mountpoint.with_name("some"))
    for words in (
        ["--renew", "--new-passphrase-file", some],
        ["--passphrase-file", some],
        ["--renew", "--passphrase-file", some, "--recovery-key-file", some],
    ):
        assert program.run("recover-key", *words, empty.url).returncode == 2


def test_recover_key_fails_on_an_unencrypted_filesystem(program: Program, place: Place) -> None:
    """On an unencrypted filesystem recover-key exits with status 4."""
    refused = program.run("recover-key", "--renew", place.url)
    assert (refused.returncode, "not encrypted" in refused.stderr) == (4, True)
