"""Errors of the decoder whose traceback forms a cycle; a separate process collects them."""

import struct
import subprocess
import sys
from dataclasses import replace

from s3fs_meta.codec import changelog, envelope
from s3fs_meta.codec.changelog import NO_CHANGES
from tests.codec.changelogs import GROUP, KEY
from tests.codec.keyrings import PLAIN

# The error and its traceback form a cycle, which only the garbage collector frees.
_REFUSE_AND_COLLECT = """
import gc, sys
from s3fs_meta.codec.changelog import decode, key_of
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError

def refuse():
    try:
        decode(key_of(7), data, Keyring(None, bytes(32)))
    except FormatError as exc:
        kept = exc
        return

data = sys.stdin.buffer.read()
for _ in range(50):
    refuse()
    gc.collect()
print("refused")
"""


def test_error_about_an_impossible_block_location_does_not_crash_the_interpreter() -> None:
    """Collecting an iterator over a memoryview must not crash Python (CPython issue 77894)."""
    header = changelog.dump_header(replace(GROUP, section=NO_CHANGES))
    locations = struct.pack(">I", 1) + changelog.LOCATION.pack(0, 1, 0, 0, 0, bytes(32))
    payload = struct.pack(">I", len(header)) + header + locations
    hostile = envelope.encode(b"changes", KEY, payload, PLAIN)

    ended = subprocess.run(
        [sys.executable, "-c", _REFUSE_AND_COLLECT], input=hostile, capture_output=True, check=False
    )

    assert (ended.returncode, ended.stdout) == (0, b"refused\n"), ended.stderr
