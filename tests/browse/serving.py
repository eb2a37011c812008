"""A running browse command, and requests for its pages."""

import http.client
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.polling import PROCESS_S_MAX


class Reply(NamedTuple):
    """The reply to one HTTP request."""

    status: int
    headers: http.client.HTTPMessage
    content: bytes

    @property
    def text(self) -> str:
        """Return the content of a reply as text."""
        return self.content.decode()


class Served(NamedTuple):
    """A running browse command, and the tree whose pages it serves."""

    port: int
    token: str
    root: str  # The URLs of all pages begin with this secret path.
    cookie: str
    tree: Path  # A local copy of the files in the newest txg.
    txg: int  # The newest txg of the filesystem.

    def ask(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """Request a page; send the login cookie unless the headers contain a cookie."""
        return self.raw(self.root + path, method, **headers)

    def raw(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """Send one request, with the login cookie unless the headers contain a cookie."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PROCESS_S_MAX)
        try:
            connection.request(method, path, headers={"Cookie": self.cookie, **headers})
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())
        finally:
            connection.close()

    def page(self, path: str) -> str:
        """Request a page that must exist, and return its text."""
        reply = self.ask(path)
        assert reply.status == 200, reply.text
        return reply.text

    def url(self, path: str) -> str:
        """Return the URL of a page that the running command serves."""
        return f"http://127.0.0.1:{self.port}{self.root}{path}"


@contextmanager
def printed_url(
    words: Sequence[str], environment: Mapping[str, str], stderr: int | None = None
) -> Iterator[str]:
    """Run the browse command in a context, yield its URL, and stop the command with Ctrl-C."""
    command = [sys.executable, "-m", "s3fs_meta", "browse", *words]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(PROCESS_S_MAX) == 0


@contextmanager
def serving(
    words: Sequence[str],
    environment: Mapping[str, str],
    tree: Path,
    txg: int,
    stderr: int | None = None,
) -> Iterator[Served]:
    """Run the browse command in a context, and exchange its token for a cookie."""
    with printed_url(words, environment, stderr) as printed:
        port = int(printed.partition("127.0.0.1:")[2].partition("/")[0])
        token = printed.partition("token=")[2]
        begun = Served(port, token, "", "", tree, txg)
        given = begun.raw(f"/?token={token}").headers["Set-Cookie"]
        root = given.partition("Path=")[2]
        yield begun._replace(cookie=given.partition(";")[0], root=root)
