"""A small HTTP server that replaces an S3 server and can produce faults on request.

The server sends programmed responses, or acts as a proxy of a real server. The proxy can lose,
truncate or damage responses. boto3 connects over real sockets.
"""

import http.client
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from typing_extensions import override

from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.retry import RetryPolicy
from tests.servers import Certificate

POLL_S: Final = 0.01


BUCKET: Final = "bucket"
KEY: Final = ObjectKey("pack/3f/7-9a")
AT_ONCE: Final = RetryPolicy(delay_s_min=0, delay_s_max=0)


class Seen(NamedTuple):
    """A request that the server received."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # The names of headers are in lower case.
    body: bytes


class Reply(NamedTuple):
    """A programmed response; *declared_bytes* replaces the true Content-Length."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}
    declared_bytes: int | None = None


class Forward(NamedTuple):
    """The response of the real server, which the proxy may lose or damage."""

    lose: bool = False  # Execute the request, and close the connection without a response.
    keep_bytes: int | None = None  # Close the connection after this many bytes of the body.
    flip: bool = False  # Flip one bit of the response body.
    flip_sent: bool = False  # Flip one bit of the request body.


class Drop(NamedTuple):
    """Close the connection without a response, and do not execute the request."""


class Hang(NamedTuple):
    """Send no response until the server stops."""


class Drip(NamedTuple):
    """Send the beginning of a response, then one byte at a time until the client disconnects.

    If *pause_s* is None, close the connection after the beginning.
    """

    begin: bytes
    pause_s: float | None


class ReadSlowly(NamedTuple):
    """Read the body in steps of 1 MiB with a pause before each step, then respond with 200."""

    pause_s: float


Answer = Reply | Forward | Drop | Hang | Drip | ReadSlowly
Choice = Answer | Callable[[Seen], Answer]


def error(status: int, code: str, headers: Mapping[str, str] | None = None, **fields: str) -> Reply:
    """Return an error response as S3 sends it."""
    fields.setdefault("Message", "as ordered")
    inner = "".join(f"<{name}>{escape(text)}</{name}>" for name, text in fields.items())
    text = f"<Error><Code>{code}</Code>{inner}</Error>"
    return _xml(status, text, headers or {})


def listing(keys: list[str], token: str | None = None) -> Reply:
    """Return one page of a listing."""
    items = "".join(f"<Contents><Key>{escape(key)}</Key><Size>1</Size></Contents>" for key in keys)
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    truncated = f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>"
    return _xml(200, f"<ListBucketResult>{items}{truncated}{more}</ListBucketResult>", {})


def _flipped(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


def _xml(status: int, text: str, headers: Mapping[str, str]) -> Reply:
    return Reply(status, text.encode(), {"Content-Type": "application/xml", **headers})


PUT_DONE: Final = Reply(200, headers={"ETag": '"1"'})
DELETED: Final = Reply(200, b"<DeleteResult/>", {"Content-Type": "application/xml"})


class S3Double:
    """The programmed responses of a server, and the requests that it received."""

    def __init__(self, upstream_url: str | None, scheme: str) -> None:
        self.url = ""
        self.scheme = scheme
        self.seen: list[Seen] = []
        self.connections = 0
        self.released = threading.Event()
        self.upstream = urlsplit(upstream_url).netloc if upstream_url else None
        self.default: Choice = Drop()
        self._plan: deque[Choice] = deque()
        self.reset()

    def reset(self) -> None:
        """Clear responses and recorded requests, and release hanging requests."""
        self.released.set()
        self.released = threading.Event()
        self.seen = []
        self.connections = 0
        self._plan.clear()
        self.default = Forward() if self.upstream else error(500, "InternalError")

    def answer(self, *choices: Choice) -> None:
        """Program the responses to the next requests, in this order."""
        self._plan.extend(choices)

    def answer_always(self, choice: Choice) -> None:
        """Set the response to all requests for which no response is programmed."""
        self.default = choice

    def next_answer(self, seen: Seen) -> Answer:
        """Record a request and return its response."""
        choice = self._plan.popleft() if self._plan else self.default
        # Record the request after its response is chosen: a test that waits for the request may
        # then program the response to the next one.
        self.seen.append(seen)
        return choice(seen) if callable(choice) else choice


@contextmanager
def s3_double(
    upstream_url: str | None = None, certificate: Certificate | None = None
) -> Iterator[S3Double]:
    """Run a server; with *upstream_url* it can forward requests to another server."""
    double = S3Double(upstream_url, "http" if certificate is None else "https")

    class BoundHandler(_Handler):
        orders = double

    server = ThreadingHTTPServer(("127.0.0.1", 0), BoundHandler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.certificate, certificate.private_key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    double.url = f"{double.scheme}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,))
    thread.start()
    try:
        yield double
    finally:
        double.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """The handler of one connection."""

    protocol_version = "HTTP/1.1"
    # Send header and body in one packet, because clients delay the acknowledgement of a header.
    wbufsize = -1
    orders: S3Double

    @override
    def setup(self) -> None:
        """Count this connection."""
        super().setup()
        self.orders.connections += 1

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        slow = self.orders.default
        body = (
            self._read_slowly(length, slow)
            if isinstance(slow, ReadSlowly)
            else self.rfile.read(length)
        )
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, True).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        self._send(
            self.orders.next_answer(Seen(self.command, url.path, query, headers, body)), body
        )

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815 - the base class defines the names

    def _read_slowly(self, length: int, slow: ReadSlowly) -> bytes:
        pieces = []
        while length:
            self.orders.released.wait(slow.pause_s)
            pieces.append(self.rfile.read(min(length, 1 << 20)))
            length -= len(pieces[-1])
        return b"".join(pieces)

    def _send(self, answer: Answer, body: bytes) -> None:
        match answer:
            case Reply():
                self._reply(answer)
            case Forward():
                self._forward(answer, body)
            case ReadSlowly():
                self._reply(Reply(200, headers={"ETag": '"slow"'}))
            case Hang():
                self.orders.released.wait()
                self.close_connection = True
            case Drip():
                self._drip(answer)
            case Drop():
                self.close_connection = True

    def _drip(self, drip: Drip) -> None:
        self.close_connection = True
        with suppress(ConnectionError):
            self.connection.sendall(drip.begin)
            if drip.pause_s is None:
                return
            while not self.orders.released.wait(drip.pause_s):
                self.connection.sendall(b" ")

    def _reply(self, reply: Reply) -> None:
        self.send_response_only(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        length = len(reply.body) if reply.declared_bytes is None else reply.declared_bytes
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.close_connection = length != len(reply.body)
        if self.command != "HEAD":
            try:
                self.wfile.write(reply.body)
            except ConnectionError:  # The client refuses a response body that is too long.
                self.close_connection = True

    def _forward(self, how: Forward, body: bytes) -> None:
        assert self.orders.upstream is not None, "this server has no upstream to forward to"
        connection = http.client.HTTPConnection(self.orders.upstream)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        # The signature covers all headers, including the Host header.
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.endheaders(_flipped(body) if how.flip_sent else body)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if how.lose:
            self.close_connection = True
            return
        hop = {"content-length", "connection", "transfer-encoding"}
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in hop}
        if how.flip:
            content = _flipped(content)
        cut = content if how.keep_bytes is None else content[: how.keep_bytes]
        self._reply(Reply(answer.status, cut, headers, len(content)))

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Suppress the log of the HTTP server."""
