"""The fsck command, which checks and repairs a filesystem."""

import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from s3fs_meta.codec.history_index import RUNS
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.limits import HISTORY_FAN_OUT
from s3fs_meta.model import Txg
from s3fs_meta.state_paths import locate
from tests.cli.conftest import Place
from tests.polling import wait_until
from tests.programs import Program


def test_fsck_exits_with_0_for_a_clean_filesystem(program: Program, place: Place) -> None:
    """For a clean filesystem, fsck prints one line with the URL and the word "clean"."""
    assert program.ok("fsck", "-n", place.url) == f"{place.url}: clean\n"


def test_json_output_of_fsck_is_one_object(program: Program, place: Place) -> None:
    found = json.loads(program.ok("fsck", "-n", "--json", place.url))

    assert found == {
        "url": place.url,
        "exit_status": 0,
        "invariants": [],
        "notes": [],
        "foreign": {"count": 0, "keys": []},
    }


def test_verbose_fsck_names_each_step_once(program: Program, place: Place) -> None:
    lines = program.run("fsck", "-n", "--verbose", place.url).stderr.splitlines()

    assert "s3fs-meta: checking the invariants" in lines
    assert len(lines) == len(set(lines))


def test_fsck_exits_with_8_for_a_missing_filesystem(program: Program, tmp_path: Path) -> None:
    """An operational error of fsck has status 8, as the manual page fsck(8) documents."""
    assert program.run("fsck", "-n", f"local://{tmp_path}").returncode == 8


@pytest.mark.parametrize("mode", [["-n"], ["-p"], []])
def test_fsck_refuses_to_delete_unknown_objects_without_option_y(
    program: Program, place: Place, mode: list[str]
) -> None:
    """The option -p does not suffice, because fsck -p may run at boot."""
    refused = program.run("fsck", *mode, "--delete-unknown", place.url)
    assert (refused.returncode, "needs -y" in refused.stderr) == (16, True)


def test_fsck_refuses_to_delete_unknown_objects_while_quarantined_state_exists(
    program: Program, place: Place
) -> None:
    """Quarantined state may need packs that have no row, so fsck does not delete these packs."""
    kept = locate(place.url, program.cachedir) / "kept-1"
    kept.mkdir(parents=True, mode=0o700)

    refused = program.run("fsck", "-y", "--delete-unknown", place.url)

    assert (refused.returncode, str(kept) in refused.stderr) == (16, True)
    assert f"recover-state --cachedir {program.cachedir} {place.url}, remove it" in refused.stderr


@pytest.mark.mount
@pytest.mark.parametrize("option", ["-p", "-y"])
def test_fsck_of_a_valid_filesystem_leaves_its_history_complete(
    program: Program, mounted: Place, option: str
) -> None:
    """If fsck published an image as a txg, searches would list unknown changes for the txg."""
    (mounted.mountpoint / "f").write_bytes(b"content")
    program.ok("flush", mounted.mountpoint)
    program.ok("umount", mounted.mountpoint)
    before = program.ok("versions", mounted.url, "f")

    assert program.run("fsck", option, mounted.url).returncode == 0

    assert program.ok("versions", mounted.url, "f") == before
    assert program.run("fsck", "-n", "--deep", mounted.url).returncode == 0


@pytest.mark.mount
def test_fsck_deletes_a_wrong_index_object_and_leaves_the_history_complete(
    program: Program, mounted: Place
) -> None:
    """The repair of the history index changes no metadata."""
    (mounted.mountpoint / "f").write_bytes(b"content")
    program.ok("flush", mounted.mountpoint)
    program.ok("umount", mounted.mountpoint)
    before = program.ok("versions", mounted.url, "f")
    index = mounted.bucket / RUNS.key_of(1, Txg(HISTORY_FAN_OUT))
    index.parent.mkdir(parents=True)
    shutil.copy(mounted.bucket / "changelog" / f"{2:012}", index)

    assert program.run("fsck", "-p", "--deep", mounted.url).returncode == 1

    assert not index.exists()
    assert program.ok("versions", mounted.url, "f") == before
    assert program.run("fsck", "-n", "--deep", mounted.url).returncode == 0


def test_fsck_reports_foreign_objects_and_keeps_them(program: Program, place: Place) -> None:
    """fsck reports user files and another filesystem below its prefix, and keeps them."""
    below = place.bucket / "other"
    shutil.copytree(place.bucket, below)
    (place.bucket / "holiday.jpg").write_text("x")
    (place.bucket / "not UTF-8: \udcff").write_text("x")
    before = sorted(path.relative_to(below) for path in below.rglob("*") if path.is_file())

    said = program.ok("fsck", "-y", "--delete-unknown", place.url)

    assert f"kept {len(before) + 2} objects that do not belong to this filesystem: " in said
    assert sorted(path.relative_to(below) for path in below.rglob("*") if path.is_file()) == before
    assert (place.bucket / "holiday.jpg").exists()


def test_deep_fsck_of_a_new_filesystem_finds_no_problem(program: Program, place: Place) -> None:
    assert program.run("fsck", "-n", "--deep", "--verbose", place.url).returncode == 0


@pytest.mark.mount
def test_fsck_repairs_a_damaged_changelog_from_local_state(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """For a damaged changelog, fsck -n exits with 4, and fsck -p repairs it from local state."""
    for number in range(3):
        (mounted.mountpoint / str(number)).write_bytes(b"%d" % number * 1000)
        program.ok("flush", mounted.mountpoint)
    program.ok("umount", mounted.mountpoint)
    sorted(mounted.bucket.glob("changelog/*"))[2].write_bytes(b"broken")

    found = program.run("fsck", "-n", mounted.url)
    assert (found.returncode, "I67" in found.stdout) == (4, True)
    assert program.run("fsck", "-p", mounted.url).returncode == 1
    assert program.ok("fsck", "-n", mounted.url) == f"{mounted.url}: clean\n"

    other = type(program)(tmp_path / "other")
    other.ok("mount", mounted.url, mounted.mountpoint)
    assert (mounted.mountpoint / "2").read_bytes() == b"2" * 1000
    other.ok("umount", mounted.mountpoint)


@pytest.mark.mount
def test_uploading_an_image_makes_a_damaged_changelog_harmless(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """A host with local state reads no damaged changelog, but another host needs an image."""
    mountpoint, elsewhere = mounted.mountpoint, tmp_path / "elsewhere"
    for name in ("one", "two", "three"):
        (mountpoint / name).write_text(name)
        program.ok("flush", mountpoint)
    program.ok("umount", mountpoint)
    sorted(mounted.bucket.glob("changelog/*"))[2].write_bytes(b"broken")
    other = type(program)(tmp_path / "other")
    restore = ("restore", "--to", elsewhere, mounted.url)

    program.ok("mount", mounted.url, mountpoint)
    assert other.run(*restore).returncode == ExitStatus.CORRUPTION
    program.ok("flush", "--image", mountpoint)

    other.ok(*restore)
    assert (elsewhere / "three").read_text() == "three"
    program.ok("umount", mountpoint)


def test_fsck_replaces_an_empty_local_database_from_the_bucket(
    program: Program, place: Place
) -> None:
    """If the database is empty, other commands advise fsck -y, which quarantines the database."""
    program.ok("fsck", "-n", place.url)
    state = locate(place.url, program.cachedir)
    (state / "meta.db").write_bytes(b"")

    refused = program.run("reclaim", place.url)
    assert (refused.returncode, "fsck -y" in refused.stderr) == (12, True)
    assert program.run("fsck", "-n", place.url).returncode == 4
    assert program.run("fsck", "-y", place.url).returncode == 1

    assert program.ok("fsck", "-n", place.url) == f"{place.url}: clean\n"
    assert len(list(state.glob("kept-*/meta.db"))) == 1


@pytest.mark.mount
def test_fsck_finds_and_repairs_a_missing_pack(program: Program, mounted: Place) -> None:
    """For a lost pack fsck -n exits with 4; fsck -y exits with 1 and lists the damaged file."""
    (mounted.mountpoint / "f").write_bytes(b"z" * 70_000)
    program.ok("umount", mounted.mountpoint)
    for pack in mounted.bucket.glob("pack/*/*"):
        pack.unlink()
    program.cachedir.rename(program.cachedir.with_name("lost"))

    assert program.run("fsck", "-n", mounted.url).returncode == 4
    repaired = program.run("fsck", "-y", mounted.url)
    assert repaired.returncode == 1
    assert "/f" in repaired.stdout
    assert program.run("fsck", "-n", mounted.url).returncode == 0


@pytest.mark.mount
def test_fsck_repair_of_a_mounted_filesystem_is_refused(program: Program, mounted: Place) -> None:
    """On a mounted filesystem, fsck -n succeeds. fsck -y fails and asks for an unmount."""
    (mounted.mountpoint / "f").write_bytes(b"z")

    assert program.run("fsck", "-n", mounted.url).returncode == 0
    refused = program.run("fsck", "-y", mounted.url)
    assert refused.returncode == 8
    assert "unmount it" in refused.stderr


@pytest.mark.parametrize(
    "words", [("-n", "-y"), ("-n", "-p"), ("-p", "-y"), ("-n", "-p", "-y")], ids=" ".join
)
def test_fsck_refuses_two_contradictory_modes(
    program: Program, place: Place, words: tuple[str, ...]
) -> None:
    """fsck with two modes exits with 16, as its manual page says, and changes nothing."""
    done = program.run("fsck", *words, place.url)

    assert (done.returncode, "cannot be combined" in done.stderr) == (16, True)
    assert not program.cachedir.exists() or not any(program.cachedir.iterdir())


@pytest.mark.parametrize("mode", ["-n", "-p"])
def test_fsck_refuses_to_combine_a_rebuild_with_a_mode_that_repairs_less(
    program: Program, place: Place, mode: str
) -> None:
    """A rebuild replaces all metadata, but -n promises to change nothing."""
    done = program.run("fsck", mode, "--rebuild", place.url)

    assert (done.returncode, "--rebuild" in done.stderr) == (16, True)


@pytest.mark.parametrize("answer", ["n\n", "\n", ""], ids=["no", "default", "end of input"])
def test_rebuild_that_is_not_confirmed_changes_nothing(
    program: Program, place: Place, answer: str
) -> None:
    before = sorted(place.bucket.rglob("*"))

    done = Program(program.cachedir).run("fsck", "--rebuild", place.url, text=answer)

    assert (done.returncode, done.stdout) == (16, "")
    assert "the rebuild was not confirmed (option -y); nothing was changed" in done.stderr
    assert sorted(place.bucket.rglob("*")) == before


def test_exit_status_of_fsck_does_not_depend_on_the_reader_of_its_output(
    program: Program, place: Place
) -> None:
    """A reader of the output, such as ``head``, may exit before fsck has printed all findings."""
    (place.bucket / "superblock-copy").write_bytes(b"rotten")
    # Python writes each line at once, so even the first line fails.
    program.environment["PYTHONUNBUFFERED"] = "1"
    reading, writing = os.pipe()
    os.close(reading)

    words = ("fsck", "-n", "--cachedir", program.cachedir, place.url)
    with (
        os.fdopen(writing, "wb") as closed,
        program.begin(*words, stdout=closed.fileno()) as process,
    ):
        _, said = process.communicate()

    assert (process.returncode, said) == (4, "")


def test_fsck_interrupted_after_a_prompt_does_not_report_that_nothing_changed(
    program: Program, place: Place
) -> None:
    """If the user has agreed to repairs, the repairs may have begun before Ctrl-C."""
    second = place.bucket / "superblock-copy"
    second.write_bytes(b"rotten")
    terminal, of_fsck = os.openpty()
    words = ("fsck", "--cachedir", program.cachedir, place.url)
    with program.begin(*words, stdin=of_fsck, stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        said = ""
        while not said.endswith("Repair? [y/N]:"):
            character = process.stderr.read(1)
            assert character, said
            said += character
        # fsck repairs the superblock, and then waits for the lock of the state directory.
        with (locate(place.url, program.cachedir) / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.write(terminal, b"y\n")
            wait_until(lambda: second.read_bytes() != b"rotten", "fsck has not begun to repair")
            process.send_signal(signal.SIGINT)
            said = process.stderr.read()
    os.close(terminal)
    os.close(of_fsck)

    assert process.returncode == 32
    assert "all repairs are undone, unless their upload had begun" in said


def _stop_after(program: Program, place: Place, lines: int, number: int) -> tuple[int, str]:
    """Run fsck -y --verbose and send a signal after a few lines; return the status and output."""
    words = ("fsck", "-y", "--verbose", "--cachedir", program.cachedir, place.url)
    with program.begin(*words, stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        for _ in range(lines):
            assert process.stderr.readline().startswith("s3fs-meta: ")
        process.send_signal(number)
        last_words = process.stderr.read()
    return process.returncode, last_words


@pytest.mark.mount
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("lines", [1, 2, 3, 4])
def test_interrupted_fsck_repair_can_be_retried(
    program: Program, mounted: Place, number: signal.Signals, lines: int
) -> None:
    """If fsck is interrupted after one of its first lines, a second fsck completes the repair."""
    (mounted.mountpoint / "f").write_bytes(b"kept" * 50_000)
    program.ok("umount", mounted.mountpoint)
    database = sqlite3.connect(locate(mounted.url, program.cachedir) / "meta.db")
    database.execute("UPDATE inodes SET nlink = 7 WHERE mode & 61440 = 32768")
    database.commit()
    database.close()

    status, last_words = _stop_after(program, mounted, lines, number)

    # fsck exits with 1 if it finished the repair before the signal arrived.
    assert status in {1, -number} | ({32} if number is signal.SIGINT else set())
    assert "Traceback" not in last_words
    assert program.run("fsck", "-y", mounted.url).returncode in {0, 1}
    assert program.run("fsck", "-n", "--deep", mounted.url).returncode == 0
    program.ok("mount", mounted.url, mounted.mountpoint)
    assert (mounted.mountpoint / "f").read_bytes() == b"kept" * 50_000
    assert (mounted.mountpoint / "f").stat().st_nlink == 1


@pytest.mark.mount
def test_fsck_uploads_local_state_if_the_bucket_has_lost_all_metadata(
    program: Program, mounted: Place
) -> None:
    """If lease, changelogs and images are lost, fsck -y --publish-local uploads the local state."""
    (mounted.mountpoint / "d").mkdir()
    (mounted.mountpoint / "d" / "f").write_bytes(b"precious\n" * 9000)
    program.ok("umount", mounted.mountpoint)
    for folder in ("image", "changelog"):
        shutil.rmtree(mounted.bucket / folder)
    (mounted.bucket / "lease").unlink()

    refused = program.run("fsck", "-y", mounted.url)
    assert refused.returncode == 4
    assert "fsck -y --publish-local" in refused.stdout
    assert program.run("fsck", "-y", "--publish-local", mounted.url).returncode == 1

    program.ok("fsck", "-n", mounted.url)
    other = Program(program.cachedir.with_name("other"))
    other.ok("mount", mounted.url, mounted.mountpoint)
    assert (mounted.mountpoint / "d" / "f").read_bytes() == b"precious\n" * 9000


@pytest.mark.mount
def test_fsck_replaces_the_older_content_of_a_restored_bucket_with_local_state(
    program: Program, mounted: Place
) -> None:
    """The bucket was restored to an older state, and then another host wrote into it.

    Only fsck -y --publish-local discards the changes of the other host.
    """
    program.ok("umount", mounted.mountpoint)
    older = mounted.bucket.with_name("older")
    shutil.copytree(mounted.bucket, older)
    program.ok("mount", mounted.url, mounted.mountpoint)
    (mounted.mountpoint / "ours").write_bytes(b"ours" * 9000)
    program.ok("umount", mounted.mountpoint)
    shutil.rmtree(mounted.bucket)
    older.rename(mounted.bucket)
    other = Program(program.cachedir.with_name("other"))
    other.ok("mount", mounted.url, mounted.mountpoint)
    (mounted.mountpoint / "theirs").write_bytes(b"theirs")
    other.ok("umount", mounted.mountpoint)

    refused = program.run("fsck", "-y", mounted.url)
    assert refused.returncode == 4
    assert "fsck -y --publish-local" in refused.stderr
    made = program.run("fsck", "-y", "--publish-local", mounted.url)
    assert made.returncode == 1, made.stderr

    program.ok("fsck", "-n", mounted.url)
    third = Program(program.cachedir.with_name("third"))
    third.ok("mount", mounted.url, mounted.mountpoint)
    assert (mounted.mountpoint / "ours").read_bytes() == b"ours" * 9000
    assert not (mounted.mountpoint / "theirs").exists()


@pytest.mark.mount
def test_rebuild_recovers_file_content_if_all_metadata_is_lost(
    program: Program, mounted: Place
) -> None:
    """fsck --rebuild restores all content into lost+found.

    It is refused while an image or intact local state exists.
    """
    content = b"precious\n" * 9000
    (mounted.mountpoint / "f").write_bytes(content)
    ino = (mounted.mountpoint / "f").stat().st_ino
    program.ok("umount", mounted.mountpoint)
    refused = program.run("fsck", "--rebuild", "-y", mounted.url)
    assert refused.returncode == 16
    assert "can be restored up to txg" in refused.stderr
    for folder in ("image", "changelog"):
        shutil.rmtree(mounted.bucket / folder)
    (mounted.bucket / "lease").unlink()
    assert program.run("mount", mounted.url, mounted.mountpoint).returncode != 0
    refused = program.run("fsck", "--rebuild", "-y", mounted.url)
    assert refused.returncode == 16
    assert "--publish-local" in refused.stderr
    database = locate(mounted.url, program.cachedir) / "meta.db"
    database.write_bytes(b"rotten" * 1000)

    made = program.run("fsck", "--rebuild", "-y", mounted.url)

    assert made.returncode == 1
    assert "found 1 file in 1 pack; all are in lost+found" in made.stdout
    recovery = f"s3fs-meta recover-state --cachedir {program.cachedir} {mounted.url}"
    assert f"{recovery} copies its files" in made.stderr
    program.ok("mount", mounted.url, mounted.mountpoint)
    assert (mounted.mountpoint / "lost+found" / f"#{ino}").read_bytes() == content
    program.ok("umount", mounted.mountpoint)
    program.ok("fsck", "-n", mounted.url)


@pytest.mark.mount
def test_rebuild_is_refused_while_another_host_holds_the_lease(
    program: Program, mounted: Place
) -> None:
    """fsck --rebuild requires --takeover while another host has the lease."""
    (mounted.mountpoint / "f").write_bytes(b"precious")
    program.ok("flush", mounted.mountpoint)
    for folder in ("image", "changelog"):
        shutil.rmtree(mounted.bucket / folder)
    other = Program(program.cachedir.with_name("other"))
    before = (mounted.bucket / "lease").read_bytes()

    refused = other.run("fsck", "--rebuild", "-y", mounted.url)

    assert refused.returncode == 8
    assert "use --takeover" in refused.stderr
    assert (mounted.bucket / "lease").read_bytes() == before
    assert not (mounted.bucket / "image").exists()
    made = other.run("fsck", "--rebuild", "-y", "--takeover", mounted.url)
    assert made.returncode == 1, made.stderr
