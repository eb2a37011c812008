"""Completion of command lines, also tested through a real bash."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

import pytest
import typer

from contrib.docs import reference
from s3fs_meta.cli import completion
from s3fs_meta.cli.completion import NamedFilesystem, options_after, times
from s3fs_meta.cli.limits import COMPLETED_POINTS_MAX
from s3fs_meta.mount.existing import mount_table, targets
from s3fs_meta.mount.existing.mount_table import Mounted
from s3fs_meta.options import option_syntax
from s3fs_meta.options.option_table import OPTIONS, WITHOUT_EFFECT
from s3fs_meta.sync import known_points
from s3fs_meta.sync.known_points import Known, Point
from tests.cli.conftest import Place
from tests.programs import Program

# This script completes a command line as bash does, which also splits words at "=" and ":".
_COMPLETE: Final = r"""
s3fs-meta() { "$PYTHON" -m s3fs_meta "$@"; }
COMP_LINE=$1 COMP_POINT=${#1}
_s3fs_meta s3fs-meta
printf '%s\n' "${COMPREPLY[@]}"
"""


def completed(line: str, directory: Path | None = None) -> list[str]:
    """Return the words that bash offers for the end of a command line."""
    script = reference.completion_scripts()["s3fs-meta"]
    done = subprocess.run(
        ["bash", "--norc", "-c", script + _COMPLETE, "bash", line],
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(reference.ROOT)},
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_shell_completion_offers_every_option_that_is_not_yet_on_the_command_line() -> None:
    words = options_after("ro,cachesize=5G,", NamedFilesystem())

    assert len(words) == len(OPTIONS) - len(WITHOUT_EFFECT) - 2
    assert "ro,cachesize=5G,allow_other" in words
    assert "ro,cachesize=5G,commit=" in words


@pytest.mark.parametrize(
    ("incomplete", "offered"),
    [
        ("fsync=", ["fsync=local", "fsync=remote"]),
        ("ro,journal_mode=t", ["ro,journal_mode=truncate"]),
        ("page_size=6", ["page_size=65536"]),
        (r"upload_limit=8:00\,1M,fsync=r", [r"upload_limit=8:00\,1M,fsync=remote"]),
        (r"upload_limit=8:00\,fsync=r", []),
        ("commit=", []),
        ("unknown=", []),
        ("ro=", []),
    ],
)
def test_shell_completion_offers_values_of_an_option(incomplete: str, offered: list[str]) -> None:
    assert options_after(incomplete, NamedFilesystem()) == offered


def test_shell_completion_offers_settings_of_a_mount() -> None:
    assert completion.settings("up") == ["upload_limit="]
    assert len(completion.settings("")) == 3


# --- completion of points in time --------------------------------------------------------------

URL: Final = "local:///srv/store"
POINTS: Final = tuple(Point(txg, 1_795_420_800_000_000_000 + txg * 10**9) for txg in range(7, 99))


@pytest.fixture
def known(tmp_path: Path) -> NamedFilesystem:
    """Return a filesystem whose state directory lists some known points in time."""
    place = NamedFilesystem(URL, tmp_path / "state")
    state = targets.of_url(URL, place.cachedir).state
    state.mkdir(parents=True)
    known_points.write(state, Known("u", POINTS))
    return place


def test_shell_completion_offers_known_txgs_with_the_latest_first(known: NamedFilesystem) -> None:
    found = times("", known)

    assert found[:3] == ["newest", "txg=98", "txg=97"]
    assert len(found) == COMPLETED_POINTS_MAX + 1
    assert times("txg=9", known) == [f"txg={number}" for number in range(98, 89, -1)]
    assert options_after("ro,at=n", known) == ["ro,at=newest"]
    assert options_after("ro,txg=90", known) == ["ro,txg=90"]


def test_shell_completion_offers_known_times_after_a_digit_was_typed(
    known: NamedFilesystem,
) -> None:
    """Every point in time that completion offers selects exactly one known txg."""
    found = times("20", known)

    assert len(found) == COMPLETED_POINTS_MAX
    for text, point in zip(found, reversed(POINTS), strict=False):
        assert option_syntax.point_in_time("at", text).time_ns == point.time_ns
    assert times("1999", known) == []


def test_shell_completion_offers_the_names_of_kept_points(
    known: NamedFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Completion offers the names of kept points for every option with a point in time."""
    state = targets.of_url(URL, known.cachedir).state
    known_points.write(state, Known("u", POINTS, ("before-upgrade", "nightly")))

    assert times("", known)[:4] == ["newest", "nightly", "before-upgrade", "txg=98"]
    assert times("be", known) == ["before-upgrade"]
    assert options_after("ro,at=ni", known) == ["ro,at=nightly"]
    mounted = Mounted("/mnt/home", "0:42", mount_table.FS_TYPE, URL)
    monkeypatch.setattr(mount_table, "read", lambda: [mounted])
    for params in (
        {"url": URL},
        {"target": URL},
        {"target": "/mnt/home"},
        {"source": "/mnt/home/x"},
    ):
        context = cast(
            "typer.Context", SimpleNamespace(params={**params, "cachedir": known.cachedir})
        )
        assert completion.kept_names(context, "") == ["nightly", "before-upgrade"]
        assert completion.points_in_time(context, "b") == ["before-upgrade"]
    elsewhere = SimpleNamespace(params={"target": "local:///other", "cachedir": known.cachedir})
    assert completion.kept_names(cast("typer.Context", elsewhere), "") == []


def test_shell_completion_finds_the_filesystem_of_a_mount_with_a_quoted_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the mount table, blanks, commas and similar characters of a URL are percent-encoded."""
    url = "local:///srv/my store, é"
    state = targets.of_url(url, tmp_path).state
    state.mkdir(parents=True)
    known_points.write(state, Known("u", POINTS, ("nightly",)))
    quoted = "local:///srv/my%20store%2C%20%C3%A9"
    mounted = Mounted("/mnt/home", "0:42", mount_table.FS_TYPE, quoted)
    monkeypatch.setattr(mount_table, "read", lambda: [mounted])

    context = SimpleNamespace(params={"target": "/mnt/home", "cachedir": tmp_path})

    assert completion.kept_names(cast("typer.Context", context), "") == ["nightly"]


def test_shell_completion_without_a_url_uses_the_only_filesystem(known: NamedFilesystem) -> None:
    """Without a URL, completion uses the host's only filesystem.

    If there are several, it uses none.
    """
    nameless = known._replace(url=None)
    assert times("newest", nameless) == ["newest"]
    assert known.cachedir is not None
    (known.cachedir / "second").mkdir()
    known_points.write(known.cachedir / "second", Known("v", POINTS))

    assert times("", nameless) == []
    assert times("newest", known) == ["newest"]


@pytest.mark.parametrize("data", [None, b"damaged", b'{"version": 2}'])
def test_shell_completion_of_points_in_time_does_not_read_the_bucket(
    known: NamedFilesystem, data: bytes | None
) -> None:
    file = targets.of_url(URL, known.cachedir).state / "points.json"
    file.unlink()
    if data is not None:
        file.write_bytes(data)

    assert times("", known) == times("20", known) == []


def test_program_completes_a_command_line_only_if_a_shell_requests_it() -> None:
    """The program reads the words to complete only if the shell has set the completion variable."""
    assert completion.typed_arguments({"COMP_WORDS": "s3fs-meta mount"}) is None
    assert completion.typed_arguments(
        {completion.VARIABLE: "complete_bash", "COMP_WORDS": "s3fs-meta mount -o ro"}
    ) == ["mount", "-o", "ro"]


def test_shell_completion_offers_no_mountpoint_if_the_user_types_a_url() -> None:
    assert completion.mountpoints("local:///") == []


@pytest.mark.parametrize(
    ("incomplete", "offered"),
    [
        ("", ["/a/b", "/a/bc/d", "/x"]),
        ("/a/b", ["/a/b", "/a/bc/d"]),
        ("b", ["b", "bc/d"]),
        ("./b", ["./b", "./bc/d"]),
        ("../x", ["../x"]),
        ("../a/bc", ["../a/bc/d"]),
        ("../", ["../a/b", "../a/bc/d", "../x"]),
        ("c", []),
    ],
)
def test_shell_completion_offers_relative_paths_of_mountpoints(
    monkeypatch: pytest.MonkeyPatch, incomplete: str, offered: list[str]
) -> None:
    """Completion offers the mountpoints of s3fs-meta, as absolute or relative paths."""
    found = [Mounted(path, "0:9", mount_table.FS_TYPE, URL) for path in ("/a/b", "/a/bc/d", "/x")]
    found.append(Mounted("/a/bd", "0:8", "ext4", "/dev/sda"))
    monkeypatch.setattr(mount_table, "read", lambda: found)
    monkeypatch.setattr(os, "getcwd", lambda: "/a")

    assert completion.mountpoints(incomplete) == offered


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("s3fs-meta umo", ["umount"]),
        ("s3fs-meta mount --fore", ["--foreground"]),
        ("s3fs-meta mount -o ro,cachedi", ["ro,cachedir="]),
        # bash keeps the typed text "commit=".
        ("s3fs-meta mount -o commit=1,cachedi", ["1,cachedir="]),
        ("s3fs-meta mount -o cachedir=/tm", []),  # bash itself completes file names.
        # bash keeps the typed text "ro,fsync=".
        ("s3fs-meta mount -o ro,fsync=", ["local", "remote"]),
        ("s3fs-meta restore --cachedir /nothing --at ", []),
        ("s3fs-meta set /mnt down", ["download_limit="]),
        ("s3fs-meta umount local:///", []),
    ],
)
def test_bash_completes_an_s3fs_meta_command_line(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


@pytest.mark.mount
@pytest.mark.slow
def test_bash_completes_a_point_in_time_of_a_mount(program: Program, mounted: Place) -> None:
    """Completion finds points in time without the bucket, and keeps the text before "=" or ":"."""
    (mounted.mountpoint / "f").touch()
    program.ok("umount", mounted.mountpoint)
    mounted.bucket.rename(mounted.bucket.with_name("away"))
    known = known_points.read(targets.of_url(mounted.url, program.cachedir).state)
    assert known is not None
    end, options = known.points[-1], f"--cachedir {program.cachedir}"

    assert completed(f"s3fs-meta restore {mounted.url} {options} --at n") == ["newest"]
    for words in ("rollback {} --at", "log {} --since 1h --until"):
        line = f"s3fs-meta {words.format(f'{mounted.url} {options}')} txg="
        assert completed(line)[0] == str(end.txg)
    assert completed(f"s3fs-meta mount {options} -o ro,at=t")[0] == f"txg={end.txg}"


@pytest.mark.mount
def test_bash_completes_mountpoints(mounted: Place) -> None:
    """Bash completes the relative path of a mountpoint."""
    mountpoint = mounted.mountpoint

    assert completed("s3fs-meta status m", mountpoint.parent) == [mountpoint.name]
