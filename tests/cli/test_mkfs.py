"""The mkfs command, which creates a filesystem in a bucket."""

import json
import os
import re
from pathlib import Path

import pytest

from s3fs_meta.cli import entry, mkfs
from s3fs_meta.codec import superblock
from s3fs_meta.errors import StoreAccessError
from s3fs_meta.objects.contract import ObjectStore
from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX
from tests.programs import Program
from tests.servers import S3Server, s3_server, server_folder  # noqa: F401 - fixtures


def _mkfs(tmp_path: Path, *words: str) -> int:
    url = f"local://{tmp_path}/bucket"
    return entry.main(["mkfs", "--cachedir", str(tmp_path / "state"), *words, url])


def test_mkfs_stores_the_requested_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--plain", "--label", "x", "--block-size", "64K", "--page-size", "8K", "--json"]

    assert _mkfs(tmp_path, *words) == 0

    made = json.loads(capsys.readouterr().out)
    assert made["label"] == "x"
    assert made["block_bytes"] == 65536
    assert made["page_size"] == 8192
    assert made["encrypted"] is False
    assert made["recovery_key"] is None
    assert (tmp_path / "bucket" / "superblock").is_file()


def test_mkfs_leaves_no_local_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """mkfs deletes its temporary database after making the first image."""
    assert _mkfs(tmp_path, "--plain") == 0
    assert list((tmp_path / "state").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--block-size", "3M"), "size"),
        (("--block-size", "32K"), "size"),
        (("--block-size", "1000"), "size"),
        (("--block-size", "32M"), "size"),
        (("--page-size", "100"), "size"),
        (("--page-size", "x"), "size"),
        (("--label", "x" * 65), "label"),
        (("--label", "x\ny"), "label"),
        (("--plain", "--passphrase-file", "/dev/null"), "cannot be combined"),
    ],
)
def test_mkfs_refuses_impossible_settings_before_any_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    """For invalid settings, mkfs exits with status 2 and creates no directory."""
    assert _mkfs(tmp_path, *words) == 2

    assert list(tmp_path.iterdir()) == []
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--block-size", "3M"), "block size 3145728 is not a power of two between 64K and 16M"),
        (("--page-size", "768"), "page size 768 is not a power of two between 512 and 64K"),
        ((), "file' cannot be created: it is not a directory"),
    ],
)
def test_mkfs_error_describes_what_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    (tmp_path / "file").touch()
    assert entry.main(["mkfs", "--plain", *words, f"local://{tmp_path}/file"]) == 2
    assert says in capsys.readouterr().err


def test_mkfs_refuses_the_url_of_an_existing_filesystem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """mkfs never overwrites an existing superblock."""
    assert _mkfs(tmp_path, "--plain") == 0
    before = (tmp_path / "bucket" / "superblock").read_bytes()

    assert _mkfs(tmp_path, "--plain") == 6
    assert (tmp_path / "bucket" / "superblock").read_bytes() == before


def test_mkfs_error_inside_another_filesystem_names_the_url_of_that_filesystem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _mkfs(tmp_path, "--plain") == 0
    inner = f"local://{tmp_path}/bucket/a/b"

    assert entry.main(["mkfs", "--plain", "--cachedir", str(tmp_path / "state"), inner]) == 6

    assert f"lies below the filesystem local://{tmp_path}/bucket;" in capsys.readouterr().err
    assert not (tmp_path / "bucket" / "a").exists()


@pytest.mark.s3
def test_mkfs_is_refused_inside_another_filesystem_on_s3(
    tmp_path: Path,
    s3_server: S3Server,  # noqa: F811 - the fixture
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On S3, mkfs finds a filesystem above or below its URL, and ignores a similar prefix."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    s3_server.make_bucket("nested")
    prefix = "s3://nested/x"
    words = ["--plain", "--cachedir", str(tmp_path / "state"), "--endpoint-url"]
    words.append(s3_server.endpoint_url)
    assert entry.main(["mkfs", *words, f"{prefix}/a"]) == 0

    for inner, status in ((f"{prefix}/a/b/c", 6), (prefix, 6), (f"{prefix}/ab", 0)):
        assert entry.main(["mkfs", *words, inner]) == status
    assert f"filesystem {prefix}/a lies below" in capsys.readouterr().err


def test_mkfs_ignores_parent_prefixes_without_read_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its credentials are valid only for its prefix, mkfs ignores unreadable parent prefixes."""
    (tmp_path / "bucket").mkdir()
    lookups: list[str] = []

    async def refused(store: ObjectStore) -> bool:
        lookups.append(store.url)
        raise StoreAccessError("superblock", "AccessDenied", "check the policy of the bucket")

    monkeypatch.setattr(mkfs, "has_superblock", refused)

    assert _mkfs(tmp_path, "--plain") == 0
    assert lookups[0] == f"local://{tmp_path}"


def test_mkfs_refuses_a_prefix_with_foreign_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """mkfs refuses a prefix below which another program stores objects."""
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "holiday.jpg").write_text("x")

    assert _mkfs(tmp_path, "--plain") == 6
    assert "holiday.jpg" in capsys.readouterr().err


def test_mkfs_prints_the_recovery_key_only_once(program: Program, empty: Place) -> None:
    """mkfs encrypts by default and prints the recovery key, which it does not store."""
    program.environment["S3FS_META_PASSPHRASE"] = "correct horse"

    shown = program.ok("mkfs", empty.url)

    [key] = re.findall(r"^    ([A-Z0-9-]{30,})$", shown, re.MULTILINE)
    stored = (empty.bucket / "superblock").read_bytes()
    assert superblock.decode(superblock.KEY, stored).encrypted
    assert key.encode() not in stored


@pytest.mark.parametrize("output", ["full disk", "unwritable", "closed pipe"])
@pytest.mark.parametrize("words", [(), ("--json",)], ids=["text", "json"])
def test_mkfs_creates_nothing_if_the_recovery_key_cannot_be_printed(
    program: Program, empty: Place, output: str, words: tuple[str, ...]
) -> None:
    """If the recovery key is lost, the filesystem is lost together with its passphrase."""
    program.environment["S3FS_META_PASSPHRASE"] = "correct horse"
    command = ["mkfs", *words, "--cachedir", str(program.cachedir), empty.url]
    reader, writer = os.pipe()
    os.close(reader)
    streams = {
        "full disk": os.open("/dev/full", os.O_WRONLY),
        # If stdout is closed, Python replaces it in this way.
        "unwritable": os.open("/dev/null", os.O_RDONLY),
        "closed pipe": writer,
    }

    with program.begin(*command, stdout=streams[output]) as process:
        _, said = process.communicate(timeout=PROCESS_S_MAX)
    for fd in streams.values():
        os.close(fd)

    assert (process.returncode, "nothing was created" in said) == (14, True)
    assert [path.name for path in empty.bucket.iterdir()] == ["tmp"]
    program.ok("mkfs", empty.url)


def test_mkfs_error_without_passphrase_or_terminal_names_the_missing_option(
    program: Program, empty: Place
) -> None:
    """Without a passphrase in a script, mkfs names --passphrase-file and creates nothing."""
    done = program.run("mkfs", empty.url)

    assert done.returncode == 4
    assert "--passphrase-file" in done.stderr
    assert not empty.bucket.exists()


def test_mkfs_at_a_url_that_is_not_utf8_creates_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No other command could use the filesystem, because its state directory has no valid name."""
    url = f"local://{tmp_path}/\udcff"

    assert entry.main(["mkfs", "--plain", "--cachedir", str(tmp_path / "state"), url]) == 2

    assert "is not UTF-8" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
