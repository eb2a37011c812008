"""The passphrase command, which changes the passphrase of a filesystem."""

from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.programs import Program


@pytest.mark.slow
def test_new_passphrase_replaces_the_old_passphrase(program: Program, empty: Place) -> None:
    old, new = empty.mountpoint.with_name("old"), empty.mountpoint.with_name("new")
    old.write_text("one\n")
    new.write_text("two\n")
    program.ok("mkfs", "--passphrase-file", old, empty.url)

    words = f"passphrase --passphrase-file {old} --new-passphrase-file {new} {empty.url}".split()
    changed = program.run(*words, here=False)
    assert (changed.returncode, "still opens with the old" in changed.stdout) == (0, True)

    assert program.run("fsck", "-n", "--passphrase-file", new, empty.url).returncode == 0
    assert program.run("status", "--passphrase-file", old, empty.url).returncode == 4
    assert program.run(*words, here=False).returncode == 4


@pytest.mark.slow
def test_new_passphrase_is_not_read_from_the_environment(program: Program, empty: Place) -> None:
    """The environment provides only the old passphrase.

    The new one is typed or read from a file.
    """
    program.environment["S3FS_META_PASSPHRASE"] = "one"
    program.ok("mkfs", empty.url)

    done = program.run("passphrase", empty.url, here=False)

    assert done.returncode == 4
    assert "use --new-passphrase-file" in done.stderr


def test_passphrase_file_that_other_users_can_read_causes_one_warning(
    program: Program, empty: Place, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for file in (old, new):
        file.write_text(file.name)
        file.chmod(0o644)

    for words in (["mkfs"], ["status"], ["passphrase", "--new-passphrase-file", str(new)]):
        done = program.run(*words, "--passphrase-file", old, empty.url)
        assert done.returncode == 0
        warned = [line for line in done.stderr.splitlines() if "other users can read" in line]
        named = [file for file in (old, new) if str(file) in words or file == old]
        assert sorted(warned) == sorted(
            f"s3fs-meta: other users can read the passphrase file {str(file)!r}: chmod 600"
            for file in named
        )


def test_error_about_an_unneeded_passphrase_names_its_source(
    program: Program, empty: Place, tmp_path: Path
) -> None:
    """The passphrase may be in an environment variable that the user has forgotten."""
    program.ok("mkfs", "--plain", empty.url)
    file = tmp_path / "secret"
    file.write_text("one\n")
    file.chmod(0o600)

    done = program.run("fsck", "-n", "--passphrase-file", file, empty.url)
    assert f"a passphrase is given in the passphrase file {str(file)!r}; leave" in done.stderr
    program.environment["S3FS_META_PASSPHRASE"] = "one"
    done = program.run("fsck", "-n", empty.url)
    assert "a passphrase is given in $S3FS_META_PASSPHRASE; leave" in done.stderr
