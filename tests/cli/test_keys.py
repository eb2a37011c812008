"""Commands that change the keys in a superblock."""

from pathlib import Path

import pytest
import trio

from s3fs_meta.cli.keys import change_superblock
from s3fs_meta.cli.passphrase import new_passphrase
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
    trio.run(change_superblock, place, S3Options(), Passphrase(_never), mutate)


def test_key_commands_fail_on_an_unencrypted_filesystem(place: Place, program: Program) -> None:
    """On an unencrypted filesystem, a key command fails before it asks for a passphrase."""
    with pytest.raises(PassphraseError, match="not encrypted"):
        _change(place.url, program.cachedir)


def test_key_commands_advise_mkfs_if_no_filesystem_exists_at_the_url(tmp_path: Path) -> None:
    with pytest.raises(NotAFilesystemError, match="mkfs"):
        _change(f"local://{tmp_path}", tmp_path)
