"""Tests of the browse command, which serves the files of a bucket as web pages."""

import contextlib
import os
import socket
from pathlib import Path

import pytest

from tests.browse.serving import Served, serving
from tests.programs import Program

pytestmark = pytest.mark.mount


def test_browse_serves_the_bucket_without_local_state(served: Served) -> None:
    """The fixture checks that SIGINT stops the browse command and that no local state remains."""
    assert served.port > 0
    assert served.ask("/").status == 200
    assert "/mount" not in served.page("/")


def test_ctrl_c_stops_the_browse_command_during_a_download(served: Served, tmp_path: Path) -> None:
    state, url = tmp_path / "state", f"local://{served.tree.parent}/bucket"
    with contextlib.ExitStack() as later:
        with serving(["--cachedir", str(state), url], os.environ, served.tree, 0) as other:
            client = later.enter_context(socket.create_connection(("127.0.0.1", other.port)))
            path = f"{other.root}/tar/{served.txg}/"
            head = f"Host: localhost:{other.port}\r\nCookie: {other.cookie}\r\n"
            client.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
            assert client.recv(12) == b"HTTP/1.1 200"
        assert list(state.glob("*/meta.db")) == []


def test_browse_continues_if_the_reader_of_standard_error_has_exited(
    served: Served, tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = ["--cachedir", str(tmp_path / "state"), f"local://{served.tree.parent}/bucket"]
    try:
        with serving(words, os.environ, served.tree, 0, stderr=writing) as other:
            assert other.ask("/").status == 200
    finally:
        os.close(writing)


def test_browse_pages_stay_available_after_the_unmount(tmp_path: Path) -> None:
    """Pages are made from the bucket, so they stay available after the unmount."""
    program, mnt, url = Program(tmp_path / "state"), tmp_path / "mnt", f"local://{tmp_path}/bucket"
    mnt.mkdir()
    program.ok("mkfs", "--plain", url)
    program.ok("mount", url, mnt)
    with contextlib.ExitStack() as stack:
        mounted = stack.enter_context(contextlib.ExitStack())
        mounted.callback(program.ok, "umount", mnt)
        (mnt / "file").write_text("content")
        program.ok("flush", mnt)
        words = ["--cachedir", str(program.cachedir), str(mnt)]
        served = stack.enter_context(serving(words, program.environment, mnt, 2))
        assert "serving" in served.page("/mount")
        mounted.close()
        assert served.ask("/content/2/file").content == b"content"
        assert served.ask("/").status == 200
        assert served.ask("/mount").status == 200
