"""The rollback command, which restores an earlier state of a filesystem."""

import json
import os
import pty
import re
import signal

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX
from tests.programs import Program


def test_rollback_without_confirmation_changes_nothing(program: Program, place: Place) -> None:
    """Rollback prints its effect and requires --yes. A rollback to the newest txg does nothing."""
    # fsck -p uploads a fence record, which is a second point in time.
    program.ok("fsck", "-p", place.url)

    done = program.run("rollback", "--at", "txg=0", place.url)
    assert done.returncode == 2
    assert "will be rolled back from txg " in done.stderr
    assert "to txg 0 of " in done.stderr
    assert " undoes 1 transaction group\n" in done.stderr
    assert "use --yes" in done.stderr
    done = program.run("rollback", "--yes", "--at", "newest", place.url)
    assert (done.returncode, "nothing to roll back" in done.stderr) == (3, True)


def test_prompt_of_rollback_can_be_interrupted(program: Program, place: Place) -> None:
    """Ctrl-C at the prompt ends the command, without another key."""
    program.ok("fsck", "-p", place.url)
    ours, theirs = pty.openpty()
    words = ("rollback", "--at", "txg=0", "--cachedir", program.cachedir, place.url)
    with program.begin(*words, stdin=theirs) as process:
        os.close(theirs)
        try:
            assert process.stderr is not None
            said = ""
            while not said.endswith("continue: "):
                character = process.stderr.read(1)
                assert character, said
                said += character
            process.send_signal(signal.SIGINT)
            process.wait(PROCESS_S_MAX)
        finally:
            process.kill()
    os.close(ours)

    assert process.returncode == ExitStatus.INTERRUPTED


def test_command_that_undoes_a_rollback_has_the_options_of_the_rollback(
    program: Program, place: Place
) -> None:
    """Without --cachedir and the options of the store, the command would not find the filesystem."""
    program.ok("fsck", "-p", place.url)

    shown = program.ok("rollback", "--yes", "--at", "txg=0", place.url)

    last = re.sub("txg=[0-9]+", "txg=N", shown.splitlines()[-1])
    assert last == (
        f"to undo it: s3fs-meta rollback --at txg=N --cachedir {program.cachedir} {place.url}"
    )


@pytest.mark.mount
def test_rollback_can_be_undone(program: Program, mounted: Place) -> None:
    """A rollback restores a removed file, and a second rollback undoes the first."""
    mnt = mounted.mountpoint
    (mnt / "old").write_bytes(b"old" * 1000)
    program.ok("flush", mnt)
    txg = program.status(mnt)["chain"]["txg"]
    (mnt / "old").unlink()
    (mnt / "new").write_bytes(b"new" * 1000)
    done = program.run("rollback", "--yes", "--at", f"txg={txg}", mounted.url)
    assert (done.returncode, "unmount it first" in done.stderr) == (7, True)
    program.ok("umount", mnt)

    answer = json.loads(
        program.ok("rollback", "--yes", "--json", "--at", f"txg={txg}", mounted.url)
    )

    program.ok("mount", mounted.url, mnt)
    assert os.listdir(mnt) == ["old"]
    assert (mnt / "old").read_bytes() == b"old" * 1000
    program.ok("umount", mnt)
    assert answer["past"] == txg
    assert answer["txg"] == answer["was"] + 1
    shown = program.ok("rollback", "--yes", "--at", f"txg={answer['was']}", mounted.url)
    assert f"has the state of txg {answer['was']} of " in shown
    assert "to undo it: s3fs-meta rollback --at txg=" in shown
    program.ok("mount", mounted.url, mnt)
    assert os.listdir(mnt) == ["new"]
    assert (mnt / "new").read_bytes() == b"new" * 1000
    program.ok("umount", mnt)
    program.ok("fsck", "-n", "--deep", mounted.url)
