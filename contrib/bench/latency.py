"""A proxy on loopback that adds latency to an S3 server, and counts requests.

The proxy delays each request before it forwards the first byte. A request with ``Expect:
100-continue`` is delayed again before its body, because it needs a second round trip. The proxy
does not limit the bandwidth, and does not delay new connections. It forwards bodies with
splice(2). The proxy runs in a separate process, so that it does not share the interpreter lock
with a client.

``python -m contrib.bench.latency --to PORT --delay-ms 30`` prints the port of the proxy. For each
line on its standard input the proxy prints one line of JSON with its counts. The proxy exits when
its standard input is closed.
"""

import argparse
import contextlib
import fcntl
import json
import os
import re
import socket
import socketserver
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, cast
from urllib.parse import parse_qs, urlsplit

from typing_extensions import override

HOST: Final = "127.0.0.1"
HEAD_BYTES_MAX: Final = 64 << 10
PIPE_BYTES: Final = 1 << 20  # Largest pipe size for unprivileged processes.
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_EXPECT: Final = re.compile(rb"\r\nexpect: *100-continue", re.IGNORECASE)


def kind_of(head: bytes) -> str:
    """Return the method of a request; for a GET of a bucket, return "LIST" or "GET bucket"."""
    method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
    parts = urlsplit(target)
    query = parse_qs(parts.query, keep_blank_values=True)
    if method == "GET" and "/" not in parts.path.strip("/"):
        return "LIST" if {"list-type", "prefix", "delimiter"} & query.keys() else "GET bucket"
    return method


class Proxy(socketserver.ThreadingTCPServer):
    """The proxy; counts requests by kind, and bytes (including headers) by direction."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, delay_s: float) -> None:
        super().__init__((HOST, 0), Connection)
        self.port, self.delay_s = port, delay_s
        self._guard, self._counts = threading.Lock(), Counter[str]()

    def count(self, name: str, number: int = 1) -> None:
        """Increase the count *name* by *number*."""
        with self._guard:
            self._counts[name] += number

    def counts(self) -> str:
        """Return all counts as JSON."""
        with self._guard:
            return json.dumps(self._counts, sort_keys=True)


class Connection(socketserver.BaseRequestHandler):
    """A pair of connections, to the client and to the server, with a thread per direction."""

    @override
    def handle(self) -> None:
        """Forward requests and responses until the client or the server closes its connection."""
        self._client: socket.socket = self.request
        self._proxy = cast("Proxy", self.server)
        with socket.create_connection((HOST, self._proxy.port)) as self._server:
            for each in (self._client, self._server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answers = threading.Thread(target=self._answers, daemon=True)
            answers.start()
            try:
                with (
                    contextlib.suppress(OSError),
                    _pipe() as pipe,
                ):  # The peer closed its connection.
                    self._requests(pipe)
            finally:
                self._hang_up()
                answers.join()

    def _hang_up(self) -> None:
        for each in (self._client, self._server):
            with contextlib.suppress(OSError):  # The connection is already closed.
                each.shutdown(socket.SHUT_RDWR)

    def _requests(self, pipe: tuple[int, int]) -> None:
        buffered = b""
        while True:
            while b"\r\n\r\n" not in buffered:
                piece = self._client.recv(HEAD_BYTES_MAX)
                if not piece or len(buffered) > HEAD_BYTES_MAX:
                    return
                buffered += piece
            at = buffered.index(b"\r\n\r\n") + 4
            head, buffered = buffered[:at], buffered[at:]
            self._proxy.count(kind_of(head))
            if _CHUNKED.search(head):
                self._proxy.count("refused: of unknown length")
                return
            time.sleep(self._proxy.delay_s)
            self._server.sendall(head)
            length = _LENGTH.search(head)
            buffered = self._body(int(length[1]) if length else 0, buffered, head, pipe)

    def _body(self, length: int, buffered: bytes, head: bytes, pipe: tuple[int, int]) -> bytes:
        """Forward the body of a request; return the bytes in *buffered* that follow the body."""
        if length and not buffered and _EXPECT.search(head):
            buffered = self._client.recv(HEAD_BYTES_MAX)
            time.sleep(self._proxy.delay_s)
        first, rest = buffered[:length], buffered[length:]
        self._server.sendall(first)
        passed = len(first)
        while passed < length:
            count = _pass_on(pipe, self._client, self._server, length - passed)
            if not count:
                raise ConnectionResetError
            passed += count
        self._proxy.count("sent_bytes", len(head) + passed)
        return rest

    def _answers(self) -> None:
        with _pipe() as pipe, contextlib.suppress(OSError):
            while count := _pass_on(pipe, self._server, self._client, PIPE_BYTES):
                self._proxy.count("received_bytes", count)
        self._hang_up()


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """Yield a pipe, which splice(2) needs to move bytes between two sockets."""
    ends = os.pipe()
    try:
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        yield ends
    finally:
        for end in ends:
            os.close(end)


def _pass_on(
    pipe: tuple[int, int], source: socket.socket, target: socket.socket, count_max: int
) -> int:
    """Forward at most *count_max* bytes; return their number, which is 0 if *source* is closed."""
    count = left = os.splice(source.fileno(), pipe[1], min(count_max, PIPE_BYTES))
    while left:
        left -= os.splice(pipe[0], target.fileno(), left)
    return count


def main(argv: Sequence[str]) -> int:
    """Run the proxy until its standard input is closed."""
    parser = argparse.ArgumentParser(prog="python -m contrib.bench.latency")
    parser.add_argument("--to", type=int, required=True, help="port of the S3 server")
    parser.add_argument("--delay-ms", type=float, required=True)
    arguments = parser.parse_args(argv)
    proxy = Proxy(arguments.to, arguments.delay_ms / 1e3)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    print(proxy.server_address[1], flush=True)
    for _line in sys.stdin:
        print(proxy.counts(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
