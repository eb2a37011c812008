"""Opening and closing the store of a command."""

from pathlib import Path

import pytest

from s3fs_meta.errors import NotAFilesystemError
from s3fs_meta.mount.stores import opened_store
from s3fs_meta.objects.urls import S3Options


async def test_store_is_open_within_its_context(tmp_path: Path) -> None:
    """The body of the context has the store, and its exceptions are not changed."""
    url = f"local://{tmp_path}"

    async def use() -> None:
        async with opened_store(url, S3Options()) as store:
            raise KeyError(store.url)

    with pytest.raises(KeyError, match=url):
        await use()


async def test_missing_directory_of_a_store_is_refused(tmp_path: Path) -> None:
    """Only mkfs creates a missing directory."""
    with pytest.raises(NotAFilesystemError, match="mount its disk"):
        async with opened_store(f"local://{tmp_path}/missing", S3Options()):
            pass
    async with opened_store(f"local://{tmp_path}/missing", S3Options(), make_root=True):
        pass
