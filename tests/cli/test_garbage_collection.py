"""Tests of when Python's garbage collector runs in commands."""

import gc
import subprocess
import sys

import pytest

from s3fs_meta.cli import garbage_collection
from tests.programs import Program

_COUNTED = """
import atexit, gc, sys
from s3fs_meta.cli import mount_helper, start
before = gc.get_stats()[0]["collections"]
atexit.register(lambda: print(gc.get_stats()[0]["collections"] - before, gc.isenabled()))
start.program() if sys.argv[1] == "umount" else mount_helper.main()
"""


@pytest.mark.parametrize("words", [("umount", "/"), ("local:///x", "/", "-f")])
def test_python_garbage_collections_begin_after_the_modules_are_loaded(
    program: Program, words: tuple[str, str]
) -> None:
    """By default, Python's garbage collector collects more than seventy times during imports."""
    done = subprocess.run(
        [sys.executable, "-c", _COUNTED, *words],
        capture_output=True,
        text=True,
        check=False,
        env=program.environment,
    )

    collections, is_enabled = done.stdout.split()
    assert int(collections) < 10
    assert is_enabled == "True"


def test_python_garbage_collector_keeps_its_settings_if_collection_was_not_postponed() -> None:
    before = (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count())

    garbage_collection.begin()

    assert (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()) == before
