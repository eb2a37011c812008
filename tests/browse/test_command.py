"""The command that serves the pages."""

import contextlib
import os
import socket
from pathlib import Path

import pytest

from tests.browse.serving import Served, serving
from tests.programs import Program

pytestmark = pytest.mark.mount


def test_command_serves_the_bucket_without_local_state(served: Served) -> None:
    """The fixture ends it with SIGINT, and checks its status and that no state stays."""
    assert served.port > 0
    assert served.ask("/").status == 200
    assert "/mount" not in served.page("/")


def test_ctrl_c_ends_the_command_during_a_download(served: Served, tmp_path: Path) -> None:
    state, url = tmp_path / "state", f"local://{served.tree.parent}/bucket"
    with contextlib.ExitStack() as later:
        with serving(["--cachedir", str(state), url], os.environ, served.tree, 0) as other:
            client = later.enter_context(socket.create_connection(("127.0.0.1", other.port)))
            path = f"{other.root}/tar/{served.txg}/"
            head = f"Host: localhost:{other.port}\r\nCookie: {other.cookie}\r\n"
            client.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
            assert client.recv(12) == b"HTTP/1.1 200"
        assert list(state.glob("*/meta.db")) == []


def test_pages_outlive_the_mount(tmp_path: Path) -> None:
    """They are made from the bucket; the page of the mount says that it has ended."""
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
