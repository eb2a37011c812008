"""A new passphrase by the recovery key."""

import json

import pytest

from tests.cli.conftest import Place, Program


@pytest.mark.slow
def test_recovery_key_sets_a_new_passphrase(program: Program, empty: Place) -> None:
    """However it was typed: in small letters, without dashes."""
    key_file, new = empty.mountpoint.with_name("key"), empty.mountpoint.with_name("new")
    program.environment["S3FS_META_PASSPHRASE"] = "forgotten"
    recovery_key = json.loads(program.ok("mkfs", "--json", empty.url))["recovery_key"]
    key_file.write_text(recovery_key.lower().replace("-", " ") + "\n")
    new.write_text("remembered\n")

    words = f"recover-key --recovery-key-file {key_file} --new-passphrase-file {new}".split()
    program.ok(*words, empty.url, here=False)

    program.environment["S3FS_META_PASSPHRASE"] = "remembered"
    assert program.status(empty.url)["image"]["pieces"] == 1


def test_without_a_terminal_the_message_says_what_to_use(program: Program, empty: Place) -> None:
    """The option for the key, not the one for a passphrase that is lost."""
    program.environment["S3FS_META_PASSPHRASE"] = "forgotten"
    program.ok("mkfs", empty.url)

    done = program.run("recover-key", empty.url, here=False)

    assert done.returncode == 4
    assert "--recovery-key-file" in done.stderr
    assert " --passphrase-file" not in done.stderr


@pytest.mark.slow
def test_wrong_recovery_key_changes_nothing(program: Program, empty: Place) -> None:
    """Status 4, and the passphrase still opens."""
    key_file = empty.mountpoint.with_name("key")
    key_file.write_text("AAAAAA-AAAAAA\n")
    program.environment["S3FS_META_PASSPHRASE"] = "kept"
    program.ok("mkfs", empty.url)

    words = f"recover-key --recovery-key-file {key_file} --new-passphrase-file {key_file}".split()
    assert program.run(*words, empty.url, here=False).returncode == 4

    assert program.status(empty.url)["image"]["pieces"] == 1
