"""Commands that change the keys in a superblock."""

import signal
from pathlib import Path

import pytest
import trio

from s3fs_meta.cli.keys import change_superblock
from s3fs_meta.cli.passphrase import new_passphrase
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.console.interruption import InterruptedCommandError
from s3fs_meta.errors import NotAFilesystemError, PassphraseError
from s3fs_meta.mount.existing import targets
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.sync.superblock.unlocking import Passphrase
from tests.cli.conftest import Place
from tests.programs import Program


def _never() -> bytes:
    raise AssertionError("the key command must not ask for a passphrase")


def _change(url: str, cachedir: Path) -> None:
    place = targets.of_url(url, cachedir)
    mutate = new_passphrase(cachedir / "new")
    change_superblock(place, S3Options(), Passphrase(_never), mutate)


def test_key_commands_fail_on_an_unencrypted_filesystem(place: Place, program: Program) -> None:
    """On an unencrypted filesystem, a key command fails before it asks for a passphrase."""
    with pytest.raises(PassphraseError, match="not encrypted"):
        _change(place.url, program.cachedir)


def test_key_commands_advise_mkfs_if_no_filesystem_exists_at_the_url(tmp_path: Path) -> None:
    with pytest.raises(NotAFilesystemError, match="mkfs"):
        _change(f"local://{tmp_path}", tmp_path)


@pytest.mark.parametrize("begun", [False, True])
def test_interrupted_change_reports_whether_the_superblock_may_be_changed(
    place: Place, program: Program, *, begun: bool
) -> None:
    """A signal before the new superblock is complete changes nothing; later it may be written."""

    def interrupted(superblock: Superblock, keyring: Keyring) -> Superblock:
        if not begun:
            signal.raise_signal(signal.SIGINT)
        token = trio.lowlevel.current_trio_token()
        token.run_sync_soon(signal.raise_signal, signal.SIGINT)
        return superblock_codec.amend(superblock, keyring, retention_s=60)

    where = targets.of_url(place.url, program.cachedir)
    said = "may be changed already; run the command again" if begun else "^nothing was changed$"
    with pytest.raises(InterruptedCommandError, match=said):
        change_superblock(where, S3Options(), Passphrase(_never), interrupted)
