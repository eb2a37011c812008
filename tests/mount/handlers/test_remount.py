"""Tests of ``mount -o remount``: the accepted options, and the request to the daemon."""

from pathlib import Path

import pytest

from s3fs_meta.control.protocol import Message
from s3fs_meta.errors import ReadOnlyStateError, UsageError
from s3fs_meta.model import AccessTime, BlockState
from s3fs_meta.mount.existing.mount_table import Flags
from s3fs_meta.mount.handlers import remount
from s3fs_meta.mount.handlers.remount import RemountHandlers
from s3fs_meta.mount_errors import NotMountedError
from s3fs_meta.options.settings import MountOptions, given_options, parse_mount_options, shown_value
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import Power, write_file
from tests.sync.follower.following import following

_FLAGS = Flags(
    frozenset({"rw", "nosuid", "nodev", "relatime"}), frozenset({"rw", "user_id=0", "allow_other"})
)
MADE = "commit=3,noatime,cachedir=/var/tmp/state,at_least=4:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa,allow_other"


def test_word_remount_is_recognised_only_as_a_separate_option() -> None:
    """The word remount inside another option does not cause a remount."""
    assert remount.asks_for_it(["ro,remount"])
    assert remount.asks_for_it(["ro", "remount,commit=3"])
    assert not remount.asks_for_it(["ro", "x-remount,profile=remount"])


def test_kernel_flags_passed_to_a_remount_are_ignored() -> None:
    """mount(8) also passes the flags of the kernel. Only other options are parsed."""
    words = "ro,nosuid,nodev,relatime,remount,user_id=0,allow_other,commit=3,profile=a\\,b"

    given = remount.given_by([words], _FLAGS)

    assert {field: one.text for field, one in given.items()} == {
        "read_only": "ro",
        "commit_interval_s": "commit=3",
        "profile": "profile=a,b",
    }


def test_remount_error_names_an_unknown_option() -> None:
    with pytest.raises(UsageError, match="xyzzy"):
        remount.given_by(["remount,ro,xyzzy"], _FLAGS)


def test_remount_of_an_unmounted_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotMountedError, match=str(tmp_path)):
        remount.remount("local:///b", tmp_path, ["remount,ro"])


async def _ask(session: Session, *, read_only: bool | None, words: str = "") -> Message:
    """Send a remount request to a mount that was made with the options MADE."""
    handlers = RemountHandlers(parse_mount_options([MADE]), session).handlers()
    given = {
        field: {"text": one.text, "value": shown_value(one.value)}
        for field, one in given_options([words]).items()
    }
    arguments = {"read_only": read_only, "given": given}
    return await handlers[remount.REMOUNT](arguments, lambda _event: None)


async def test_writer_can_be_remounted_read_only_and_then_writable(plain: Power) -> None:
    """A remount with ro or rw changes the kernel's read-only flag. Any other remount keeps it."""
    async with plain.session() as session:
        assert await _ask(session, read_only=True) == {"change": True}
        assert await _ask(session, read_only=False) == {"change": True}
        assert await _ask(session, read_only=None) == {"change": False}


async def test_remount_accepts_the_current_options(plain: Power) -> None:
    """A remount with the options of fstab, which mount(8) passes, is accepted."""
    async with plain.session() as session:
        assert await _ask(session, read_only=True, words=MADE) == {"change": True}


@pytest.mark.parametrize(
    "word", ["commit=4", "relatime", "cachedir=/var/tmp/other", "capacity=1G", "noexec", "follow"]
)
async def test_remount_error_names_each_option_that_cannot_change(plain: Power, word: str) -> None:
    """The error says that a remount can change only ro and rw."""
    async with plain.session() as session:
        with pytest.raises(
            UsageError,
            match=f"a remount can change only ro and rw; .* option '{word}'.*s3fs-meta set lists",
        ):
            await _ask(session, read_only=True, words=word)


async def test_mount_that_was_created_read_only_refuses_remount_read_write(plain: Power) -> None:
    """A mount made with ro has no lease, so a remount with rw is refused."""
    async with plain.session(options=OpenOptions(read_only=True)) as session:
        assert await _ask(session, read_only=True) == {"change": True}
        with pytest.raises(UsageError, match="mounted with ro"):
            await _ask(session, read_only=False)


async def test_remount_of_a_follower_changes_nothing(plain: Power) -> None:
    """A remount of a follower with rw is refused, and the error advises promote."""
    async with plain.session() as writer:
        await writer.flush()
        async with following(plain) as (session, _listener):
            assert await _ask(session, read_only=True) == {"change": False}
            with pytest.raises(UsageError, match="promote"):
                await _ask(session, read_only=False)


async def test_degraded_mount_refuses_remount_read_write(plain: Power) -> None:
    """The option rw is refused with the reason why the mount is degraded."""
    async with plain.session() as session:
        session.status.degrade("the disk refused to sync")
        assert await _ask(session, read_only=True) == {"change": True}
        with pytest.raises(ReadOnlyStateError, match="the disk refused to sync; unmount"):
            await _ask(session, read_only=False)


async def test_read_only_remount_commits_the_open_commit_group(plain: Power) -> None:
    """A remount also records whether the kernel has the mount read-only."""
    async with plain.session(tasks=False) as session:
        write_file(session, b"content")
        assert session.cache.index.bytes_in[BlockState.DIRTY] == 7
        handlers = RemountHandlers(MountOptions(), session).handlers()
        seen = [(session.db.in_group, session.status.kernel_read_only)]

        for read_only in (True, False):
            await handlers[remount.REMOUNTED]({"read_only": read_only}, lambda _event: None)
            seen.append((session.db.in_group, session.status.kernel_read_only))

        assert seen == [(True, False), (False, True), (False, False)]


def test_equal_option_values_with_different_spelling_are_recognised_as_equal() -> None:
    """A relative time parsed twice has two values, but both are compared as the given text."""
    first, second = (given_options(["at=1h ago"])["at"].value for _ in range(2))

    assert shown_value(first) == shown_value(second) == "1h ago"
    assert shown_value(Path("/tmp/../tmp")) == "/tmp"
    assert shown_value(AccessTime.NEVER) != shown_value(AccessTime.ALWAYS)
