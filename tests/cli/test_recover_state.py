"""The recover-state command, which copies files out of quarantined state."""

import contextlib
import json
import os
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.limits import MIB
from tests.cli.conftest import Place
from tests.programs import Program


def _fence(program: Program, mounted: Place, another: Program) -> None:
    """Kill the mount while it has an unshipped file, and write from another host."""
    (mounted.mountpoint / "old").write_bytes(b"in the image")
    program.ok("flush", mounted.mountpoint)
    (mounted.mountpoint / "new").write_bytes(b"unshipped")
    fd = os.open(mounted.mountpoint / "new", os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    program.kill(mounted.mountpoint)
    program.run("umount", mounted.mountpoint)
    another.ok("mount", "--takeover", mounted.url, mounted.mountpoint)
    (mounted.mountpoint / "theirs").touch()
    another.ok("umount", mounted.mountpoint)


@pytest.mark.mount
@pytest.mark.parametrize("words", [("keep", "safe"), ("reclaim",)])
def test_notice_about_a_quarantine_suggests_a_complete_command(
    program: Program, unsent: Place, tmp_path: Path, words: Sequence[str]
) -> None:
    _fence(program, unsent, Program(tmp_path / "another"))

    done = program.run(words[0], "--region", "my region", unsent.url, *words[1:])

    given = f"--region 'my region' --cachedir {program.cachedir}"
    assert f"s3fs-meta recover-state {given} {unsent.url} copies files out of it" in done.stderr


@pytest.mark.mount
def test_recover_state_command_copies_files_of_a_fenced_host(
    program: Program, unsent: Place, tmp_path: Path
) -> None:
    """recover-state copies only files that changed after the last flush."""
    _fence(program, unsent, Program(tmp_path / "another"))
    assert "are kept in" in program.run("mount", unsent.url, unsent.mountpoint).stderr

    listed = json.loads(program.ok("recover-state", "--json", unsent.url))["kept"]
    answer = json.loads(program.ok("recover-state", "--json", "--to", tmp_path / "o", unsent.url))

    assert [one["only_here_bytes"] for one in listed] == [9]
    assert (answer["files"], answer["incomplete"]) == (1, [])
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["new"]
    assert (tmp_path / "o" / "new").read_bytes() == b"unshipped"


def test_recover_state_command_lists_nothing_without_quarantined_state(
    program: Program, place: Place
) -> None:
    """Without quarantined state the list is empty, and copying from it exits with status 3."""
    assert program.ok("recover-state", place.url).startswith("nothing is quarantined in ")
    assert program.run("recover-state", "--to", place.mountpoint, place.url).returncode == 3


def test_recover_state_command_refuses_a_non_empty_target(program: Program, place: Place) -> None:
    """recover-state refuses a target with files, so that copies cannot mix with them."""
    listed = json.loads(program.ok("recover-state", "--json", place.url))
    (Path(listed["state"]) / "kept-1").mkdir(parents=True)
    (place.mountpoint / "x").touch()

    done = program.run("recover-state", "--to", place.mountpoint, place.url)

    assert (done.returncode, "is not empty" in done.stderr) == (2, True)


def test_recover_state_command_needs_a_database_to_copy_block_files(
    program: Program, place: Place, tmp_path: Path
) -> None:
    """Without a database recover-state exits with 3 and reports the number of block files."""
    listed = json.loads(program.ok("recover-state", "--json", place.url))
    blocks = Path(listed["state"]) / "kept-1" / "blocks"
    blocks.mkdir(parents=True)
    (blocks / "7").write_bytes(b"raw content")

    done = program.run("recover-state", "--to", tmp_path / "o", place.url)

    assert (done.returncode, "no database, only 1 block file" in done.stderr) == (3, True)


def test_recover_state_command_asks_which_of_several_quarantined_states_to_use(
    program: Program, place: Place, tmp_path: Path
) -> None:
    """With two quarantined states, a copy requires --kept. A corrupt database causes status 12."""
    listed = json.loads(program.ok("recover-state", "--json", place.url))
    for name in ("kept-1", "kept-2"):
        (Path(listed["state"]) / name).mkdir(parents=True)
        (Path(listed["state"]) / name / "meta.db").write_bytes(b"no database" * 1000)
    words = ["recover-state", "--to", str(tmp_path / "out"), place.url]

    assert program.run(*words).returncode == 2
    assert program.run(*words, "--kept", "kept-3").returncode == 2
    done = program.run(*words, "--kept", "kept-2")

    assert done.returncode == 12
    assert "meta.db" in done.stderr


@pytest.mark.mount
@pytest.mark.parametrize("damage", ["value = x'3437'", "value = 'text'", "name = 'other'"])
def test_recover_state_command_uses_the_block_size_of_the_superblock(
    program: Program, mounted: Place, tmp_path: Path, damage: str
) -> None:
    """With another block size, all blocks except the first would be copied to wrong positions."""
    content = os.urandom(5 << 20)
    (mounted.mountpoint / "f").write_bytes(content)
    program.ok("umount", mounted.mountpoint)
    state = Path(json.loads(program.ok("recover-state", "--json", mounted.url))["state"])
    (state / "kept-1").mkdir()
    for name in ("meta.db", "blocks"):
        (state / name).rename(state / "kept-1" / name)
    with contextlib.closing(sqlite3.connect(state / "kept-1" / "meta.db")) as database:
        database.execute(f"UPDATE properties SET {damage} WHERE name = 'block_bytes'")
        database.commit()

    program.ok("recover-state", "--everything", "--to", tmp_path / "o", mounted.url)

    assert (tmp_path / "o" / "f").read_bytes() == content


def _quarantine(program: Program, mounted: Place) -> Path:
    """Unmount the filesystem, and quarantine its local state; return the state directory."""
    program.ok("umount", mounted.mountpoint)
    state = Path(json.loads(program.ok("recover-state", "--json", mounted.url))["state"])
    (state / "kept-1").mkdir()
    for name in ("meta.db", "blocks"):
        (state / name).rename(state / "kept-1" / name)
    return state


@pytest.mark.mount
def test_recover_state_to_a_full_disk_reports_that_the_copy_is_incomplete(
    program: Program, mounted: Place, small_disk: Path
) -> None:
    (mounted.mountpoint / "large").write_bytes(random.Random(4).randbytes(3 * MIB))
    _quarantine(program, mounted)
    out = small_disk / "out"

    done = program.run("recover-state", "--everything", "--to", out, mounted.url)

    assert done.returncode == ExitStatus.LOCAL
    assert done.stderr.splitlines() == [
        f"s3fs-meta: the copy in {out} is not complete; remove it before you run recover-state again",
        f"s3fs-meta: {out}/large: No space left on device",
    ]


@pytest.mark.mount
@pytest.mark.parametrize("damage", ["missing", "rotten"])
def test_recover_state_advises_the_everything_option_if_a_changelog_is_unreadable(
    program: Program, mounted: Place, tmp_path: Path, damage: str
) -> None:
    """After the retention period, the image of a kept point may remain without its changelogs."""
    (mounted.mountpoint / "f").write_bytes(b"content")
    _quarantine(program, mounted)
    first, *_others = sorted((mounted.bucket / "changelog").iterdir())
    if damage == "missing":
        first.unlink()
    else:
        first.write_bytes(b"rotten")

    done = program.run("recover-state", "--to", tmp_path / "o", mounted.url)

    assert done.returncode == 3
    assert f"'changelog/{first.name}'" in done.stderr
    assert ("the changelog is missing" in done.stderr) == (damage == "missing")
    assert "--everything copies all files" in done.stderr
    program.ok("recover-state", "--everything", "--to", tmp_path / "o", mounted.url)
    assert (tmp_path / "o" / "f").read_bytes() == b"content"


@pytest.mark.mount
@pytest.mark.parametrize("history", ["same", "shorter", "other"])
def test_recover_state_command_reports_another_history_in_the_bucket(
    program: Program, mounted: Place, tmp_path: Path, history: str
) -> None:
    """A bucket may have been restored from an older copy, and written by another host since."""
    (mounted.mountpoint / "f").write_bytes(b"content")
    state = _quarantine(program, mounted)
    if history == "shorter":
        for later in sorted((mounted.bucket / "changelog").iterdir())[1:]:
            later.unlink()
    elif history == "other":
        with contextlib.closing(sqlite3.connect(state / "kept-1" / "meta.db")) as database:
            database.execute(
                "UPDATE local_state SET value = json_set(value, '$.hash', ?) WHERE name = 'chain'",
                (64 * "7",),
            )
            database.commit()

    done = program.run("recover-state", "--to", tmp_path / "o", mounted.url)

    assert done.returncode == 0
    assert ("does not have the state at txg" in done.stderr) == (history != "same")
    assert (tmp_path / "o" / "f").exists() == (history == "shorter")
