"""The passphrase command."""

import pytest

from tests.cli.conftest import Place
from tests.programs import Program


@pytest.mark.slow
def test_new_passphrase_opens_and_the_old_one_does_not(program: Program, empty: Place) -> None:
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
def test_new_passphrase_is_never_taken_from_the_environment(program: Program, empty: Place) -> None:
    """The variable holds the old passphrase; without a terminal --new-passphrase-file is needed."""
    program.environment["S3FS_META_PASSPHRASE"] = "one"
    program.ok("mkfs", empty.url)

    done = program.run("passphrase", empty.url, here=False)

    assert done.returncode == 4
    assert "use --new-passphrase-file" in done.stderr
