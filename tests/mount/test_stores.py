"""Tests of opening and closing the store for a command."""

import shlex
from functools import partial
from pathlib import Path

import pytest
import trio

from s3fs_meta.errors import (
    ControlError,
    NotAFilesystemError,
    S3fsError,
    StoreUnavailableError,
    UsageError,
)
from s3fs_meta.mount.existing.targets import own_cachedir
from s3fs_meta.mount.stores import naming_store, opened_store, with_options
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.state_paths import locate


async def test_exception_in_the_context_of_an_open_store_is_not_changed(tmp_path: Path) -> None:
    url = f"local://{tmp_path}"

    async def use() -> None:
        async with opened_store(url, S3Options(), make_root=True) as store:
            raise KeyError(store.url)

    with pytest.raises(KeyError, match=url):
        await use()


async def test_missing_bucket_directory_is_refused(tmp_path: Path) -> None:
    """Only mkfs creates a missing bucket directory."""
    with pytest.raises(NotAFilesystemError, match="mount its disk"):
        async with opened_store(f"local://{tmp_path}/missing", S3Options()):
            pass
    async with opened_store(f"local://{tmp_path}/missing", S3Options(), make_root=True):
        pass


@pytest.mark.parametrize(
    ("error", "is_named"),
    [
        (StoreUnavailableError("lease", 8, 9.0, "timeout"), True),
        (ControlError("StoreUnavailableError", "store unavailable for 'lease'"), True),
        (StoreUnavailableError("lease", 8, 9.0, "no directory local:///b"), False),
        (UsageError("no such option"), False),
    ],
)
async def test_error_of_a_store_contains_the_url_once(error: S3fsError, is_named: bool) -> None:
    """The URL is added to an error in an exception group, unless the error contains the URL."""
    before = str(error)

    with pytest.RaisesGroup(type(error)), naming_store("local:///b"):
        async with trio.open_nursery():
            raise error

    assert (str(error), error.message) == 2 * ((f"local:///b: {before}" if is_named else before),)


def test_suggested_command_contains_the_s3_options_of_the_failed_command() -> None:
    """The S3 options of the failed command are added to suggested commands for the same URL."""
    options = S3Options("http://nas:9000", None, "my profile")
    error = NotAFilesystemError("s3://bucket/home")

    with pytest.raises(NotAFilesystemError) as caught, naming_store("s3://bucket/home/", options):
        raise error

    flags = "--endpoint-url http://nas:9000 --profile 'my profile'"
    assert caught.value.message.endswith(f"with: s3fs-meta mkfs {flags} s3://bucket/home")
    text = "s3fs-meta umount --force /mnt; s3fs-meta fsck -n s3://bucket/home"
    assert with_options(text, "s3://bucket/home", options) == (
        f"s3fs-meta umount --force /mnt; s3fs-meta fsck -n {flags} s3://bucket/home"
    )
    assert with_options(text, "s3://bucket/home", S3Options()) == text
    with_space = NotAFilesystemError("s3://bucket/my home").message
    assert with_options(with_space, "s3://bucket/my home", options).endswith(
        f"with: s3fs-meta mkfs {flags} 's3://bucket/my home'"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unmount, and run s3fs-meta fsck -y", "unmount, and run s3fs-meta fsck -y {url}"),
        ("s3fs-meta fsck -y on a host repairs it", "s3fs-meta fsck -y {url} on a host repairs it"),
        ("s3fs-meta fsck -y --end-at=12.", "s3fs-meta fsck -y --end-at=12 {url}."),
        (
            "s3fs-meta fsck -n --deep, s3fs-meta umount",
            "s3fs-meta fsck -n --deep {url}, s3fs-meta umount",
        ),
        ("s3fs-meta fsck -n --deep {url}", "s3fs-meta fsck -n --deep {url}"),
        ("s3fs-meta fsck -y local:///other", "s3fs-meta fsck -y local:///other"),
        ("mount -o ro; fsck", "mount -o ro; fsck"),
        (
            "kept in /s/kept-1, and s3fs-meta recover-state copies files out of it",
            "kept in /s/kept-1, and s3fs-meta recover-state {url} copies files out of it",
        ),
        (
            "s3fs-meta recover-state --everything reads them",
            "s3fs-meta recover-state --everything {url} reads them",
        ),
        ("s3fs-meta recover-state {url}", "s3fs-meta recover-state {url}"),
        ("s3fs-meta keep --list shows all", "s3fs-meta keep --list {url} shows all"),
        ("s3fs-meta keep /mnt now", "s3fs-meta keep /mnt now"),
    ],
)
def test_suggested_command_without_a_mountpoint_includes_the_url(text: str, expected: str) -> None:
    url = "s3://bucket/home"

    assert with_options(text.format(url=url), url) == expected.format(url=url)
    flags = "--endpoint-url http://nas:9000"
    completed = expected.format(url=f"{flags} {url}")
    assert with_options(text.format(url=url), url, S3Options("http://nas:9000")) == completed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unmount, and run s3fs-meta fsck -y", "run s3fs-meta fsck -y {flags} {url}"),
        ("s3fs-meta recover-state copies it", "s3fs-meta recover-state {flags} {url} copies it"),
        ("s3fs-meta mount -o ro {url}/ /mnt", "s3fs-meta mount -o ro {url}/ /mnt"),
        ("s3fs-meta log {url} shows which", "s3fs-meta log {flags} {url} shows which"),
        (
            "s3fs-meta fsck -y on a host that has it",
            "s3fs-meta fsck -y {url} on a host that has it",
        ),
        ("s3fs-meta fsck -y on this host", "s3fs-meta fsck -y {flags} {url} on this host"),
    ],
)
def test_suggested_command_uses_the_local_state_of_the_failed_command(
    text: str, expected: str, tmp_path: Path
) -> None:
    """Another host may have another cachedir, so a command for that host has no --cachedir."""
    url, cachedir = "s3://bucket/home", tmp_path / "my cache"
    text, flags = text.format(url=url), f"--cachedir '{cachedir}'"

    found = with_options(text, url, state=locate(url, cachedir))

    assert found.endswith(expected.format(url=url, flags=flags))
    assert "--cachedir" not in with_options(text, url, state=locate(url, own_cachedir()))
    endpoint = S3Options("http://nas:9000")
    both = with_options(text, url, endpoint, locate(url, cachedir))
    assert f"--endpoint-url http://nas:9000 {flags} {url}" in both or flags not in found


@pytest.mark.parametrize("endpoint", [None, "http://nas:9000"])
@pytest.mark.parametrize("region", [None, "eu-1"])
@pytest.mark.parametrize("profile", [None, "my profile"])
@pytest.mark.parametrize("cachedir", [None, "/srv/c", "/srv/bob's cache"])
def test_message_is_completed_only_once(
    endpoint: str | None, region: str | None, profile: str | None, cachedir: str | None
) -> None:
    """The daemon completes an error, and the command or the log completes the whole message."""
    url = "s3://bucket/my home"
    state = None if cachedir is None else locate(url, Path(cachedir))
    complete = partial(
        with_options, url=url, options=S3Options(endpoint, region, profile), state=state
    )
    text = (
        "unmount, and run s3fs-meta fsck -y. s3fs-meta fsck -y --end-at=12 ends it, s3fs-meta"
        " fsck -n --deep on a host that has it, and s3fs-meta fsck -p on this host, finds it;"
        f" s3fs-meta recover-state copies it, s3fs-meta log {shlex.quote(url)} shows it,"
        " s3fs-meta recover-state --everything reads it; s3fs-meta keep --list"
    )

    once = complete(text)

    assert once.count("my home") == text.count("s3fs-meta ")
    assert complete(once) == once


@pytest.mark.parametrize("url", ["s3://bucket/home", "s3://bucket/my home"])
@pytest.mark.parametrize("rest", ["-old", "2", "/old", ".old", "%20", " 2", "'s", "//old"])
def test_command_for_a_longer_url_is_not_changed(url: str, rest: str) -> None:
    options = S3Options("http://nas:9000")
    text = f"run s3fs-meta status {shlex.quote(url + rest)}"
    assert with_options(text, url, options, locate(url, Path("/srv/c"))) == text


@pytest.mark.parametrize("url", ["s3://bucket/home", "s3://bucket/my home", "s3://bucket/bob's"])
@pytest.mark.parametrize("after", ["", ".", ", then", "; then", ": then", ")", "/.", "// then"])
def test_options_are_added_to_a_command_before_punctuation(url: str, after: str) -> None:
    slashes = "/" * after.count("/")
    word, rest = shlex.quote(url + slashes), after.lstrip("/")
    found = with_options(f"s3fs-meta status {word}{rest}", url, S3Options("http://nas:9000"))
    assert found == f"s3fs-meta status --endpoint-url http://nas:9000 {word}{rest}"


def test_command_with_a_passphrase_file_is_not_given_a_second_url() -> None:
    text = "run s3fs-meta fsck -n --passphrase-file /k s3://bucket"
    assert with_options(text, "s3://bucket") == text


async def test_option_of_a_bucket_causes_a_warning_for_a_local_store(tmp_path: Path) -> None:
    """An option without effect is omitted from messages about the store."""
    warnings: list[str] = []
    url, options = f"local://{tmp_path}", S3Options("no URL")
    async with opened_store(url, options, make_root=True, notify=warnings.append):
        pass
    assert warnings == [
        f"the option endpoint_url has no effect on '{url}', because only s3:// URLs use it"
    ]
