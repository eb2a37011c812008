"""URLs of buckets and of local bucket directories."""

import os
from pathlib import Path

import pytest

from s3fs_meta.errors import NotAFilesystemError, UsageError
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.billing import MeteredStore
from s3fs_meta.objects.local import LocalStore
from s3fs_meta.objects.retry import RetryingStore
from s3fs_meta.objects.s3 import S3Store
from s3fs_meta.objects.urls import (
    LocalAddress,
    S3Address,
    S3Options,
    StoreAddress,
    above,
    open_store,
    options_of,
    parse,
    require_bucket,
    without_effect,
)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("local:///srv/bucket", LocalAddress(Path("/srv/bucket"))),
        ("local:///srv/bucket/", LocalAddress(Path("/srv/bucket"))),
        ("local:///srv/50% of #1?", LocalAddress(Path("/srv/50% of #1?"))),
        ("s3://bucket", S3Address("bucket", "")),
        ("s3://bucket/", S3Address("bucket", "")),
        ("s3://my.bucket-1/home", S3Address("my.bucket-1", "home")),
        ("s3://bucket/backups/of 2026/", S3Address("bucket", "backups/of 2026")),
    ],
)
def test_bucket_url_is_parsed(url: str, address: StoreAddress) -> None:
    """Trailing slashes are ignored, and all other characters are taken literally."""
    assert parse(url) == address


def test_error_about_a_path_instead_of_a_url_explains_both_possible_meanings() -> None:
    """The error explains that a path may mean a mountpoint or a bucket directory."""
    with pytest.raises(UsageError) as raised:
        parse("/srv/home")
    assert "s3fs-meta status shows the URL of a mounted filesystem" in raised.value.message
    assert raised.value.message.endswith("local:///srv/home")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/srv/bucket",
        "local:/srv/bucket",
        "local://srv/bucket",
        "local://",
        "s3:bucket",
        "s3://",
        "s3:///prefix",
        "s3://Bucket",
        "s3://b",
        "s3://key:secret@bucket/prefix",
        "s3://bucket/a//b",
        "s3://bucket/a/../b",
        "s3://bucket/ä",
        "gs://bucket",
        "https://bucket.example.com",
    ],
)
def test_wrong_bucket_url_is_refused_with_one_line(url: str) -> None:
    """The error about a wrong bucket URL quotes the URL."""
    with pytest.raises(UsageError) as caught:
        parse(url)

    assert repr(url) in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "places"),
    [
        ("s3://bucket", []),
        ("s3://bucket/a", ["s3://bucket"]),
        ("s3://bucket/a/b/c", ["s3://bucket/a/b", "s3://bucket/a", "s3://bucket"]),
        ("local:///usr/none/a", ["local:///usr", "local:///"]),
    ],
)
def test_parent_prefixes_of_a_bucket_url_are_listed(url: str, places: list[str]) -> None:
    """Parent prefixes of a URL are listed from the nearest to the farthest."""
    assert above(url) == places


def test_parents_of_a_symlink_are_the_parents_of_its_target(tmp_path: Path) -> None:
    """A symlink to the bucket is resolved before its parent directories are listed."""
    (tmp_path / "bucket" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "bucket" / "inner")

    assert above(f"local://{tmp_path}/link")[0] == f"local://{tmp_path.resolve()}/bucket"


@pytest.mark.parametrize("endpoint_url", ["minio:9000", "ftp://minio", "https://", "http://a b"])
def test_wrong_s3_endpoint_is_refused(endpoint_url: str) -> None:
    """An invalid endpoint is refused before any network request."""
    with pytest.raises(UsageError, match="endpoint"):
        open_store("s3://bucket", S3Options(endpoint_url))


@pytest.mark.parametrize("word", ["endpoint_url", "region", "profile"])
def test_option_of_a_bucket_has_no_effect_on_a_local_store(tmp_path: Path, word: str) -> None:
    """An S3 option has no effect if no URL is an S3 URL; only mkfs refuses such an option."""
    url, options = f"local://{tmp_path}", S3Options(**{word: "no URL"})
    open_store(url, options, make_root=True)
    expected = f"the option {word} has no effect on '{url}'"
    assert without_effect(options, url, "local:///srv/copy").startswith(expected)
    assert not without_effect(options, url, "s3://bucket/copy")
    with pytest.raises(UsageError, match=f"^{expected}"):
        require_bucket(options, url)
    require_bucket(options, "s3://bucket/new")
    assert options_of(url, options) == S3Options()
    assert options_of("s3://bucket/copy", options) == options


async def test_missing_directory_is_refused_unless_it_may_be_created(tmp_path: Path) -> None:
    """Only mkfs may create a missing directory, because the user may have mistyped a path."""
    url = f"local://{tmp_path}/new/bucket"
    with pytest.raises(NotAFilesystemError, match="that directory does not exist"):
        open_store(url)
    with pytest.raises(UsageError, match="does not exist"):
        open_store(url, probe_only=True)
    assert os.listdir(tmp_path) == []

    store = open_store(url, make_root=True)
    await store.put(ObjectKey("superblock"), b"content")
    await store.close()

    assert (tmp_path / "new" / "bucket" / "superblock").read_bytes() == b"content"


def test_store_opened_by_url_counts_and_retries_requests(tmp_path: Path) -> None:
    local = open_store(f"local://{tmp_path}", make_root=True)
    bucket = open_store("s3://bucket/prefix", S3Options("http://127.0.0.1:9000/", region="x-1"))

    for store in (local, bucket):
        assert store.counts["get"].requests == 0
    retrying, bare = local.inner, bucket.inner
    assert isinstance(retrying, RetryingStore)
    assert isinstance(bare, RetryingStore)
    assert isinstance(bare.inner, S3Store)
    assert isinstance(retrying.inner, MeteredStore)
    assert isinstance(retrying.inner.inner, LocalStore)
    assert local.url == f"local://{tmp_path}"
    assert bucket.url == "s3://bucket/prefix"
