"""The extension is loaded before pyfuse3, and may be missing."""

import subprocess
import sys

import pytest

from s3fs_meta.fuse import extension
from tests.conftest import REQUIRED

WITHOUT = """
import sys
sys.modules["s3fs_meta.fuse.seam"] = None
from s3fs_meta.fuse import extension, raw_operations as more_operations, operations, kernel_session as session
assert extension.seam is None
more_operations.install(None)
print(more_operations.how())
"""
ORDER = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in {"pyfuse3", "s3fs_meta.fuse.seam"}:
            print(name)
sys.meta_path.insert(0, Finder())
import s3fs_meta.cli.entry
from s3fs_meta.fuse import kernel_cache
"""


def said(code: str) -> list[str]:
    """Return the lines that a program of its own prints."""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.split()


def test_extension_was_built_where_it_is_required() -> None:
    """In a checkout that has passed all tests it is there."""
    if "extension" not in REQUIRED:
        pytest.skip("without a compiler there is no extension")
    assert extension.seam is not None


def test_everything_can_be_imported_without_it() -> None:
    """It was left out where it could not be built."""
    assert said(WITHOUT) == ["absent"]


def test_it_is_loaded_before_pyfuse3() -> None:
    """Whichever module is imported first."""
    assert said(ORDER) == ["s3fs_meta.fuse.seam", "pyfuse3"]
