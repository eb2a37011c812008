"""Tests of a pinned tree while the bucket is unreachable, as in docs/guide/offline.md."""

import errno
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.limits import MIB
from s3fs_meta.mount.existing import mount_table
from tests.cli.conftest import Place
from tests.end_to_end.another_user import AnotherUser
from tests.end_to_end.contents import contents, differing
from tests.end_to_end.system_calls import drop_page_cache, refused
from tests.programs import QuickProgram, suspend
from tests.servers import S3Server, running_s3

pytestmark = [pytest.mark.mount, pytest.mark.s3, pytest.mark.slow]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    """Return a server that the test can stop."""
    with running_s3(tmp_path) as server:
        server.make_bucket("bucket")
        yield server


def _run(*words: str | Path) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def _content() -> dict[str, bytes]:
    rng = random.Random(14)
    many = {f"d{n % 5}/f{n}": rng.randbytes(rng.randrange(40_000)) for n in range(60)}
    return many | {"big": rng.randbytes(5 * MIB), "needle": b"hay needle hay", "empty": b""}


def _use_tree(tree: Path, copy: Path, expected: dict[str, bytes]) -> None:
    """Search and copy a tree with find, grep and cp, starting with an empty page cache."""
    for path in tree.rglob("*"):
        if path.is_file():
            drop_page_cache(path)
    found = set(_run("find", tree, "-type", "f", "-size", "-100M").splitlines())
    assert found == {str(tree / name) for name in expected}
    assert _run("grep", "-rl", "needle", tree) == f"{tree}/needle\n"
    _run("cp", "-a", tree, copy)
    assert differing(contents(copy), expected) == []


def test_pinned_tree_can_be_used_while_the_bucket_is_unreachable(
    empty: Place, program: QuickProgram, server: S3Server, tmp_path: Path
) -> None:
    """Without the bucket, find, grep and cp work, even on a read-only mount after a kill."""
    program.environment |= server.environment()
    url, mnt = "s3://bucket/trip", empty.mountpoint
    endpoint = ("--endpoint-url", server.endpoint_url)
    expected = _content()
    program.ok("mkfs", "--plain", *endpoint, url)
    program.ok("mount", *endpoint, "-o", "read_timeout=1", url, mnt)
    for name, data in {**{f"work/{k}": v for k, v in expected.items()}, "other": b"x"}.items():
        (mnt / name).parent.mkdir(parents=True, exist_ok=True)
        (mnt / name).write_bytes(data)
    program.ok("flush", mnt)
    program.ok("dropcache", mnt)
    program.ok("warm", "--pin", mnt / "work")
    assert server.process is not None
    suspend(server.process.pid)  # Requests to the server now hang.
    try:
        _use_tree(mnt / "work", tmp_path / "copy", expected)
        drop_page_cache(mnt / "other")
        with refused(errno.EIO):
            (mnt / "other").read_bytes()
        (mnt / "work" / "new").write_bytes(b"written on the way")
        (mnt / "work" / "d0").rename(mnt / "work" / "moved")
        os.sync()
    finally:
        server.process.send_signal(signal.SIGCONT)
    program.ok("flush", mnt)
    program.kill(mnt)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    program.ok("mount", *endpoint, "-o", "ro,read_timeout=1", url, mnt)
    expected = {name.replace("d0/", "moved/"): data for name, data in expected.items()}
    expected["new"] = b"written on the way"
    _use_tree(mnt / "work", tmp_path / "copy2", expected)
    program.run("umount", mnt)  # Umount fails because some changes are unshipped.
    assert mount_table.find(str(mnt)) is None


def test_warm_downloads_only_files_that_the_user_may_read(another_user: AnotherUser) -> None:
    """The warm command refuses files that the user may not read, but accepts the directory."""
    secret = another_user.mountpoint / "secret"
    another_user.program("mount", another_user.url, str(another_user.mountpoint))
    another_user.python(f"open({str(secret)!r}, 'w').write('x'); os.chmod({str(secret)!r}, 0)")
    with pytest.raises(AssertionError, match="no permission to read"):
        another_user.program("warm", str(secret))
    assert "all 1 B cached" in another_user.program("warm", str(another_user.mountpoint))
    another_user.program("umount", str(another_user.mountpoint))
