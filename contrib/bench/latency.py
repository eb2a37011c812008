"""A proxy on loopback that adds latency to an S3 server, and counts requests.

Each request waits before its first byte goes on: once for its head, and once more for its body
where the client first asks whether it may send one (``Expect: 100-continue``), because that is a
round trip of its own. Bytes are not slowed down: the bandwidth is the machine's. Connections are
kept, and opening one costs nothing.
A process of its own, so that it shares the interpreter lock with no client. Bodies pass by splice(2).

``python -m contrib.bench.latency --to PORT --delay-ms 30`` prints the port that it listens on, and
then one line of JSON with its counts for each line that it reads; the end of its input ends it.
"""

import argparse
import contextlib
import fcntl
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qs, urlsplit

HOST: Final = "127.0.0.1"
HEAD_BYTES_MAX: Final = 64 << 10
PIECE_BYTES: Final = 1 << 20
PIPE_BYTES: Final = 1 << 20  # the largest size that unprivileged processes may set
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_EXPECT: Final = re.compile(rb"\r\nexpect: *100-continue", re.IGNORECASE)


class Counts:
    """Requests by kind, and bytes in both directions, heads included."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._requests: dict[str, int] = {}
        self._sent_bytes = 0
        self._received_bytes = 0

    def request(self, kind: str) -> None:
        """Count a request."""
        with self._guard:
            self._requests[kind] = self._requests.get(kind, 0) + 1

    def sent(self, count: int) -> None:
        """Count bytes on their way to the server."""
        with self._guard:
            self._sent_bytes += count

    def received(self, count: int) -> None:
        """Count bytes on their way to the client."""
        with self._guard:
            self._received_bytes += count

    def as_json(self) -> str:
        """Return everything so far."""
        with self._guard:
            return json.dumps(
                {
                    "requests": dict(sorted(self._requests.items())),
                    "sent_bytes": self._sent_bytes,
                    "received_bytes": self._received_bytes,
                }
            )


def kind_of(head: bytes) -> str:
    """Return the method of a request; LIST for a GET of a listing, or of what a bucket is set to."""
    method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
    parts = urlsplit(target)
    query = parse_qs(parts.query, keep_blank_values=True)
    if method == "GET" and "/" not in parts.path.strip("/"):
        return "LIST" if {"list-type", "prefix", "delimiter"} & query.keys() else "GET bucket"
    return method


class Connection:
    """One client and its connection to the server: two threads, one for each direction."""

    def __init__(self, client: socket.socket, port: int, delay_s: float, counts: Counts) -> None:
        self._client = client
        self._server = socket.create_connection((HOST, port))
        for each in (self._client, self._server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._delay_s = delay_s
        self._counts = counts

    def serve(self) -> None:
        """Forward requests and answers until one side closes."""
        answers = threading.Thread(target=self._answers, daemon=True)
        answers.start()
        try:
            with contextlib.suppress(OSError):  # one side closed the connection
                self._requests()
        finally:
            self._hang_up()
            answers.join()
            self._client.close()
            self._server.close()

    def _hang_up(self) -> None:
        for each in (self._client, self._server):
            with contextlib.suppress(OSError):  # already closed
                each.shutdown(socket.SHUT_RDWR)

    def _requests(self) -> None:
        with _Pipe() as pipe:
            buffered = b""
            while True:
                head, buffered = self._head(buffered)
                if not head:
                    return
                self._counts.request(kind_of(head))
                length = _LENGTH.search(head)
                if _CHUNKED.search(head):
                    self._counts.request("refused: of unknown length")
                    return
                time.sleep(self._delay_s)
                self._server.sendall(head)
                self._counts.sent(len(head))
                buffered = self._body(int(length[1]) if length else 0, buffered, head, pipe)

    def _head(self, buffered: bytes) -> tuple[bytes, bytes]:
        """Return the next head, empty at the end, and the bytes after it."""
        while b"\r\n\r\n" not in buffered:
            piece = self._client.recv(HEAD_BYTES_MAX)
            if not piece or len(buffered) > HEAD_BYTES_MAX:
                return b"", b""
            buffered += piece
        at = buffered.index(b"\r\n\r\n") + 4
        return buffered[:at], buffered[at:]

    def _body(self, length: int, buffered: bytes, head: bytes, pipe: "_Pipe") -> bytes:
        """Forward the body; return the bytes after it."""
        if length and not buffered and _EXPECT.search(head):
            buffered = self._client.recv(PIECE_BYTES)
            time.sleep(self._delay_s)
        first, rest = buffered[:length], buffered[length:]
        if first:
            self._server.sendall(first)
        passed = len(first)
        while passed < length:
            count = pipe.pass_on(self._client, self._server, length - passed)
            if not count:
                raise ConnectionResetError
            passed += count
        self._counts.sent(passed)
        return rest

    def _answers(self) -> None:
        with _Pipe() as pipe, contextlib.suppress(OSError):
            while count := pipe.pass_on(self._server, self._client, PIECE_BYTES):
                self._counts.received(count)
        self._hang_up()


class _Pipe:
    """The pipe that splice(2) needs between two sockets."""

    def __enter__(self) -> "_Pipe":
        self._out, self._into = os.pipe()
        fcntl.fcntl(self._into, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)
        os.close(self._into)

    def pass_on(self, source: socket.socket, target: socket.socket, count_max: int) -> int:
        """Forward some bytes; return their number, 0 at the end."""
        count = os.splice(source.fileno(), self._into, min(count_max, PIPE_BYTES))
        left = count
        while left:
            left -= os.splice(self._out, target.fileno(), left)
        return count


def _accept(listener: socket.socket, port: int, delay_s: float, counts: Counts) -> None:
    while True:
        client, _ = listener.accept()
        connection = Connection(client, port, delay_s, counts)
        threading.Thread(target=connection.serve, daemon=True).start()


def main(argv: Sequence[str]) -> int:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser(prog="python -m contrib.bench.latency")
    parser.add_argument("--to", type=int, required=True, help="port of the server")
    parser.add_argument("--delay-ms", type=float, required=True)
    arguments = parser.parse_args(argv)
    counts = Counts()
    with socket.create_server((HOST, 0), backlog=128) as listener:
        threading.Thread(
            target=_accept,
            args=[listener, arguments.to, arguments.delay_ms / 1e3, counts],
            daemon=True,
        ).start()
        print(listener.getsockname()[1], flush=True)
        for _line in sys.stdin:
            print(counts.as_json(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
