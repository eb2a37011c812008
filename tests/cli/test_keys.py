"""Replacing the passphrase in the superblock."""

from pathlib import Path

import pytest
import trio

from s3fs_meta.cli.keys import replace_passphrase
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.errors import NotAFilesystemError, PassphraseError
from s3fs_meta.objects.urls import S3Options
from tests.cli.conftest import Place


def _never(_superblock: Superblock) -> Keyring:
    raise AssertionError("nobody should be asked")


def test_plain_filesystem_has_no_passphrase_to_change(place: Place) -> None:
    """The message says so, instead of asking for one."""
    with pytest.raises(PassphraseError, match="not encrypted"):
        trio.run(replace_passphrase, place.url, S3Options(), _never, None)


def test_place_without_a_filesystem_is_named(tmp_path: Path) -> None:
    """Nothing is made there."""
    with pytest.raises(NotAFilesystemError, match="mkfs"):
        trio.run(replace_passphrase, f"local://{tmp_path}", S3Options(), _never, None)
