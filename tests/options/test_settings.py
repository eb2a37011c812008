"""Tests of parsing mount options: values, defaults and errors."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from s3fs_meta.errors import UsageError
from s3fs_meta.model import AccessTime
from s3fs_meta.options.option_table import BY_WORD
from s3fs_meta.options.settings import (
    IGNORED_WORDS,
    REFUSED_WORDS,
    MountOptions,
    option_texts,
    parse_mount_options,
    split_options,
)


def test_empty_option_string_gives_the_default_options() -> None:
    assert parse_mount_options([]) == parse_mount_options([""]) == MountOptions()


def test_option_values_are_converted_to_their_type() -> None:
    """Sizes, times, paths, masks and words become Python values."""
    options = parse_mount_options(
        ["cachesize=2G,commit=0.5,image_interval=10m,cachedir=/srv/cache", "umask=027,uid=1000"]
    )

    assert options.cache_bytes == 2 << 30
    assert options.commit_interval_s == 0.5
    assert options.image_interval_s == 600.0
    assert options.cachedir == Path("/srv/cache")
    assert options.umask == 0o027
    assert options.uid == 1000


@pytest.mark.parametrize(
    ("text", "expected"), [("-64000", -64000), ("2000", 2000), ("256M", -262144)]
)
def test_sqlite_cache_size_can_be_a_plain_number_or_a_byte_size(text: str, expected: int) -> None:
    """A number without a unit is passed to SQLite unchanged. A size is converted to KiB."""
    assert parse_mount_options([f"cache_size={text}"]).cache_size == expected


@pytest.mark.parametrize("word", list(AccessTime))
def test_atime_options_select_when_atime_is_updated(word: AccessTime) -> None:
    """The options noatime, relatime and strictatime select when atime is updated."""
    assert parse_mount_options([word.value]).access_time is word


def test_last_of_two_contradictory_mount_options_applies() -> None:
    """Options from the command line are applied last, so they override options from fstab."""
    assert parse_mount_options(["ro,nodev", "rw,dev"]) == MountOptions(nodev=False)


@pytest.mark.parametrize(
    "text",
    [
        "defaults,_netdev,nofail,noauto,user,x-systemd.automount,x-gvfs-name=a",
        "user=bob",
        "silent,acl,user_xattr,default_permissions,comment=x-gvfs-show,comment=a=b",
        "loud,nolazytime,noiversion,nomand,symfollow,X-fstrim.notrim",
        "noatime,atime,nodiratime,diratime,strictatime,atime",
    ],
)
def test_options_for_mount_or_systemd_are_ignored(text: str) -> None:
    assert parse_mount_options([text]) == MountOptions()


def test_unknown_mount_option_is_refused_with_a_suggestion() -> None:
    """The error contains the misspelt option and the most similar known option."""
    with pytest.raises(UsageError, match=r"'jornal_mode'; did you mean 'journal_mode'\?"):
        parse_mount_options(["jornal_mode=wal"])


@pytest.mark.parametrize(
    "text",
    [
        "journal_mode=walrus",
        "synchronous=sometimes",
        "page_size=1000",
        "page_size=131072",
        "cachesize=1M",
        "cachesize=much",
        "commit=0",
        "commit=nan",
        "commit=-1",
        "read_timeout=8d",
        "umask=999",
        "uid=root",
        "uid=4294967295",
        "wal_autocheckpoint=-1",
        "wal_autocheckpoint=2147483648",
        "endpoint_url=",
        "remount",
        "ro=1",
        "journal_mode",
    ],
)
def test_error_about_an_invalid_option_value_names_the_option(text: str) -> None:
    with pytest.raises(UsageError, match=text.partition("=")[0]):
        parse_mount_options([text])


@pytest.mark.parametrize(
    "text",
    [
        "ro,takeover",
        "ro,page_size=8192",
        "journal_mode=delete,wal_autocheckpoint=9",
        "follow",
        "ro,follow,journal_mode=delete",
        "ro,follow,at=txg=1",
        "at=1h,takeover",
        "at=1h,page_size=8192",
        "ro,txg=5,follow",
    ],
)
def test_contradictory_mount_options_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_mount_options([text])


def test_backslash_escapes_a_comma_in_an_option_value() -> None:
    """A comma or a backslash in an option value must be preceded by a backslash."""
    assert split_options(r"cachedir=/a\,b,ro,profile=c\\d") == [
        "cachedir=/a,b",
        "ro",
        r"profile=c\d",
    ]


def test_parsed_mount_options_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        MountOptions().commit_interval_s = 1.0  # type: ignore[misc]  # The assignment is the test.


@pytest.mark.parametrize("word", sorted(REFUSED_WORDS))
def test_unsupported_linux_mount_option_is_refused_with_a_reason(word: str) -> None:
    with pytest.raises(UsageError, match=f"option '{word}': "):
        parse_mount_options([f"noatime,{word}"])


def test_no_mount_option_is_both_supported_and_refused_or_ignored() -> None:
    words = [*BY_WORD, *REFUSED_WORDS, *IGNORED_WORDS]
    assert len(words) == len(set(words))


EVERY_KIND = [
    "ro,follow,noexec,allow_other,noatime,cache_size=256M,compress=zstd-3",
    r"upload_limit=08:00\,512K 19:00\,10M,download_limit=1M,cachesize=2G,read_timeout=1.5",
    "at=1h ago",
    "at=txg=7",
    "txg=7",
    "umask=027,uid=1000,gid=8,capacity=5G,metrics=9105,dev,suid,nodiratime",
    "cachedir=/srv/cache,endpoint_url=http://nas:9000,region=x,profile=p,passphrase_file=/p",
    "unsafe_single_writer,journal_mode=delete,synchronous=full,sync_interval=1h,fsync=remote",
]


@pytest.mark.parametrize("text", EVERY_KIND)
def test_mount_options_written_as_text_are_parsed_unchanged(text: str) -> None:
    options = parse_mount_options([text])

    again = parse_mount_options([",".join(option_texts(options))])

    if options.at is not None and again.at is not None and options.at.is_ago:
        again = dataclasses.replace(again, at=again.at._replace(time_ns=options.at.time_ns))
    assert again == options


def test_text_of_mount_options_contains_every_option_that_is_not_default() -> None:
    """Each option is tested with a value that is not its default."""
    texts = ["", "7", "1024", "64M", "delete", "full", "file", "remote", "none", "x", "9105"]
    texts += ["1:" + "a" * 16, "/x", "2026-05-09T14:30"]
    missing = []
    for row in BY_WORD.values():
        for text in texts:
            with contextlib.suppress(UsageError):
                value: Any = row.parse(row.word, text)
                if value != getattr(MountOptions(), row.field):
                    changed = dataclasses.replace(MountOptions(), **{row.field: value})
                    missing += [] if option_texts(changed) else [row.word]
                    break
    assert missing == ["at_least"]  # A printed mount command never contains at_least.


def test_chosen_mount_options_can_be_omitted_from_the_text() -> None:
    options = parse_mount_options(["ro,region=x"])
    assert option_texts(options, {"region"}) == ["ro"]
