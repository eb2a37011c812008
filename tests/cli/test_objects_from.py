"""The fsck option --objects-from, which selects a directory with copies of objects."""

import shutil
from pathlib import Path

import pytest

from s3fs_meta.cli.objects_from import BucketCopy, copy_of, url_of
from s3fs_meta.objects.urls import S3Options
from tests.cli.conftest import Place
from tests.damage import flipped
from tests.programs import Program


def test_objects_from_option_accepts_a_path_without_a_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path becomes a URL below the working directory; a URL stays unchanged."""
    monkeypatch.chdir(tmp_path)
    assert url_of("backup") == f"local://{tmp_path}/backup"
    assert url_of("s3://bucket/prefix") == "s3://bucket/prefix"


def test_options_of_buckets_apply_to_a_copy_in_a_bucket_only() -> None:
    """A bucket can be repaired from a copy in a local directory, and a directory from a bucket."""
    options = S3Options("https://nas:9000")
    assert copy_of("s3://bucket/prefix", options) == BucketCopy("s3://bucket/prefix", options)
    assert copy_of("local:///srv/copy", options) == BucketCopy("local:///srv/copy", S3Options())


def test_fsck_refuses_wrong_use_of_the_objects_from_option(
    program: Program, place: Place, tmp_path: Path
) -> None:
    """fsck refuses --objects-from with -p, with the URL of the bucket, or with a missing path."""
    assert program.run("fsck", "-p", "--objects-from", tmp_path, place.url).returncode == 16
    refused = program.run("fsck", "-y", "--objects-from", place.bucket, place.url)
    assert refused.returncode == 16
    assert "is the bucket to repair" in refused.stderr
    refused = program.run("fsck", "-y", "--objects-from", tmp_path / "none", place.url)
    assert refused.returncode == 16


def test_fsck_warns_about_an_s3_option_if_no_url_refers_to_an_s3_bucket(
    program: Program, place: Place, tmp_path: Path
) -> None:
    """The warning is printed once if an option applies to neither the filesystem nor the copy."""
    for words in ((), ("--objects-from", tmp_path)):
        done = program.run("fsck", "-y", *words, "--region", "x", place.url)
        assert done.returncode == 0
        assert done.stderr.count("the option region has no effect") == 1


@pytest.mark.mount
def test_fsck_repairs_damage_from_a_copy_on_another_disk(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """With a copy of the bucket, fsck -y repairs a flipped bit and restores missing packs.

    Afterwards another host can read all content.
    """
    content = b"precious\n" * 90_000
    (mounted.mountpoint / "f").write_bytes(content)
    program.ok("umount", mounted.mountpoint)
    backup = tmp_path / "backup"
    shutil.copytree(mounted.bucket, backup)
    last = max((mounted.bucket / "changelog").iterdir())
    whole = last.read_bytes()
    last.write_bytes(flipped(whole, len(whole) // 2))
    for pack in (mounted.bucket / "pack").glob("*/*"):
        pack.unlink()
    other = Program(program.cachedir.with_name("other"))
    assert other.run("mount", mounted.url, mounted.mountpoint).returncode != 0

    made = other.run("fsck", "-y", "--objects-from", backup, mounted.url)

    assert made.returncode == 1, made.stderr
    assert f"changelog/{last.name}" in made.stdout
    assert last.read_bytes() == whole
    [kept] = other.cachedir.glob("*/replaced-*")
    assert kept.read_bytes() == flipped(whole, len(whole) // 2)
    other.ok("fsck", "-n", "--deep", mounted.url)
    other.ok("mount", mounted.url, mounted.mountpoint)
    assert (mounted.mountpoint / "f").read_bytes() == content
