"""Tests of the plan of a mount: options, paths and checks before any change."""

from pathlib import Path

import pytest

from s3fs_meta.errors import SettingsError, UsageError
from s3fs_meta.meta.db import pragmas
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.model import NEWEST, PointInTime
from s3fs_meta.mount.plan import make_plan, merged_options, pragmas_of
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.options.option_table import BY_WORD
from s3fs_meta.options.settings import MountOptions, parse_mount_options
from s3fs_meta.state_paths import locate

URL = "local:///srv/store"


def test_mount_plan_contains_the_given_options(tmp_path: Path) -> None:
    """The mount plan contains the options for the cache, the database, FUSE and ownership."""
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    options = parse_mount_options(
        [f"cachedir={tmp_path},cachesize=1G,ro,allow_other,commit=1,uid=5,synchronous=full"]
    )

    plan = make_plan(URL, mountpoint, options)

    assert plan.options.cache_bytes == 1 << 30
    assert plan.options.commit_interval_s == 1.0
    assert plan.open.read_only
    assert plan.open.pragmas.synchronous == "full"
    assert plan.fuse.allow_other
    assert plan.fuse.read_only
    assert plan.overrides.uid == 5
    assert plan.place.state.parent == tmp_path
    assert list(tmp_path.iterdir()) == [mountpoint]


@pytest.mark.parametrize("text", ["compress=zstd-99", "compress=gzip", "mmap_size=9000T"])
def test_invalid_value_of_a_mount_option_is_refused(tmp_path: Path, text: str) -> None:
    """An invalid value of a mount option is refused before any file is created."""
    with pytest.raises(UsageError):
        make_plan(URL, tmp_path, parse_mount_options([f"cachedir={tmp_path}", text]))

    assert not list(tmp_path.iterdir())


def test_mount_option_of_a_bucket_causes_a_warning_for_a_local_store(tmp_path: Path) -> None:
    """A line of fstab(5) with a bucket option must not stop the machine from booting."""
    (tmp_path / "m").mkdir()
    words = [f"cachedir={tmp_path}", "region=x"]
    plan = make_plan(URL, tmp_path / "m", parse_mount_options(words))
    assert [one for one in plan.warnings if "no effect on 'local:///srv/store'" in one]
    assert plan.s3 == S3Options()


@pytest.mark.parametrize("url", ["s3://", "/srv/store", "local://srv/store", "http://x/y"])
def test_mount_plan_refuses_an_invalid_url(tmp_path: Path, url: str) -> None:
    """The error about an invalid URL lists the valid forms of a URL."""
    with pytest.raises(UsageError, match=r"local:///(absolute/path|srv/store$)"):
        make_plan(url, tmp_path, MountOptions())


def test_mountpoint_must_be_an_unused_directory(tmp_path: Path) -> None:
    """A mountpoint must be a directory on which no other filesystem is mounted."""
    (tmp_path / "file").touch()

    with pytest.raises(UsageError, match="is not a directory"):
        make_plan(URL, tmp_path / "file", MountOptions())
    with pytest.raises(UsageError, match=r"create it, or use --mkdir, or in fstab X-mount\.mkdir"):
        make_plan(URL, tmp_path / "missing", MountOptions())
    with pytest.raises(UsageError, match="another filesystem is mounted"):
        make_plan(URL, Path("/proc"), MountOptions())


def test_mountpoint_above_files_of_the_daemon_is_refused(tmp_path: Path) -> None:
    """A daemon that needs files below its own mountpoint would wait for itself forever."""
    home, link = tmp_path / "home", tmp_path / "link"
    home.mkdir()
    link.symlink_to(home)
    for cachedir in (home, home / "state", link / "state"):
        with pytest.raises(UsageError, match=r"would hide the state directory.*--cachedir"):
            make_plan(URL, home, MountOptions(cachedir=cachedir))
    for bucket in (home, home / "bucket", link / "bucket"):
        with pytest.raises(
            UsageError, match=r"would hide the directory of the bucket.*choose another"
        ):
            make_plan(f"local://{bucket}", home, MountOptions(cachedir=tmp_path / "state"))
    make_plan(f"local://{home}-2", home, MountOptions(cachedir=tmp_path / "home-3"))


@pytest.mark.parametrize("at", [None, NEWEST])
def test_mountpoint_inside_directories_of_the_daemon_is_refused(
    tmp_path: Path, at: PointInTime | None
) -> None:
    """The mount would cover ``blocks`` in the state directory, or objects of the bucket."""
    url, options = f"local://{tmp_path}/bucket", MountOptions(cachedir=tmp_path / "state", at=at)
    state = locate(url, tmp_path / "state")
    for mountpoint in (state / "blocks", tmp_path / "bucket" / "pack"):
        mountpoint.mkdir(parents=True)
        with pytest.raises(UsageError, match=r"is inside the .*; choose another mountpoint$"):
            make_plan(url, mountpoint, options)
    (tmp_path / "state" / "mnt").mkdir()
    make_plan(url, tmp_path / "state" / "mnt", options)


def test_mount_on_a_non_empty_directory_causes_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    [warning] = make_plan(URL, tmp_path, MountOptions()).warnings
    assert "is not empty" in warning


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_passphrase_file_readable_by_other_users_causes_a_mount_warning(
    tmp_path: Path, mode: int
) -> None:
    file, mountpoint = tmp_path / "secret", tmp_path / "mnt"
    file.write_text("secret")
    file.chmod(mode)
    mountpoint.mkdir()
    warnings = make_plan(URL, mountpoint, MountOptions(passphrase_file=file)).warnings
    assert ["chmod 600" in warning for warning in warnings] == [True] * (mode == 0o644)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("journal_mode=off", "quarantined"),
        ("journal_mode=memory", "quarantined"),
        ("synchronous=off", "even fsynced ones"),
    ],
)
def test_options_that_weaken_durability_cause_a_warning(
    tmp_path: Path, text: str, expected: str
) -> None:
    plan = make_plan(URL, tmp_path, parse_mount_options([text]))

    assert len(plan.warnings) == 1
    assert expected in plan.warnings[0]


@pytest.mark.parametrize(
    "text", ["extension=off", "extension=used", "request_loop=scheduled", "request_loop=direct"]
)
def test_options_of_the_previous_release_are_accepted_with_a_warning(
    tmp_path: Path, text: str
) -> None:
    """An option without effect causes one warning, and does not change the plan."""
    plan = make_plan(URL, tmp_path, parse_mount_options([text]))

    assert len(plan.warnings) == 1
    assert f"{text} no longer has an effect" in plan.warnings[0]
    assert plan.fuse == make_plan(URL, tmp_path, MountOptions()).fuse


def test_default_mount_options_cause_no_warning(tmp_path: Path) -> None:
    assert make_plan(URL, tmp_path, MountOptions()).warnings == ()


def test_state_directory_with_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    """If the path of the state directory is too long, the error advises --cachedir."""
    options = parse_mount_options([f"cachedir={tmp_path / ('x' * 300)}"])

    with pytest.raises(SettingsError, match=r"too long; choose another with --cachedir"):
        make_plan(URL, tmp_path, options)


def test_mount_plan_contains_the_absolute_path_of_the_passphrase_file(tmp_path: Path) -> None:
    """The plan contains an absolute path, because the daemon changes its working directory."""
    plan = make_plan(URL, tmp_path, parse_mount_options(["passphrase_file=p"]))

    assert plan.options.passphrase_file == Path.cwd() / "p"


def test_options_of_the_command_override_options_of_fstab() -> None:
    """An option that the command line omits keeps its value from fstab."""
    merged = merged_options(
        ["region=a,profile=b,ro"], MountOptions(region="c", force_takeover=False)
    )

    assert (merged.region, merged.profile, merged.read_only) == ("c", "b", True)


@pytest.mark.parametrize("texts", ["ro", "ro,follow", "at=1h-ago"])
def test_options_of_the_command_must_not_contradict_the_mount_options(texts: str) -> None:
    with pytest.raises(UsageError, match="cannot be combined"):
        merged_options([texts], MountOptions(force_takeover=True))


def test_default_mount_options_equal_the_default_pragmas() -> None:
    assert pragmas_of(MountOptions()) == Pragmas()


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("journal_mode", pragmas.JOURNAL_MODES),
        ("synchronous", pragmas.SYNCHRONOUS),
        ("temp_store", pragmas.TEMP_STORES),
        ("page_size", pragmas.PAGE_SIZES),
    ],
)
def test_mount_option_accepts_every_value_of_its_pragma(
    word: str, values: tuple[str | int, ...]
) -> None:
    for value in values:
        assert BY_WORD[word].parse(word, str(value)) == value


def test_mount_of_a_past_txg_is_read_only_and_has_separate_local_state(tmp_path: Path) -> None:
    """A mount with txg= is read-only, and has a separate state directory for each mountpoint."""
    cachedir = f"cachedir={tmp_path}"
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    present = make_plan(URL, here, parse_mount_options([cachedir]))

    plan = make_plan(URL, here, parse_mount_options([cachedir, "txg=5"]))
    other = make_plan(URL, there, parse_mount_options([cachedir, "ro,txg=5"]))

    assert (plan.open.read_only, plan.fuse.read_only, plan.options.read_only) == (True, True, True)
    assert plan.warnings == ("a point in time is mounted read-only",)
    assert other.warnings == ()
    assert len({one.place.state for one in (present, plan, other)}) == 3
    assert plan.place.state.name.startswith(f"{present.place.state.name}-at-")


@pytest.mark.parametrize(
    ("address", "is_announced"), [("9105", False), ("[::1]:1", False), ("0.0.0.0:1", True)]
)
def test_metrics_address_that_is_open_to_other_hosts_causes_a_warning(
    tmp_path: Path, address: str, is_announced: bool
) -> None:
    (tmp_path / "m").mkdir()
    options = parse_mount_options([f"metrics={address}"])

    warnings = make_plan(URL, tmp_path / "m", options).warnings

    assert ["firewall" in warning for warning in warnings] == [True] * is_announced
