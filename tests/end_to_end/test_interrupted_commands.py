"""Tests of signals that end a command while it holds the lease, which must be released."""

import queue
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.objects.s3_double import Forward, S3Double, Seen, s3_double
from tests.polling import PROCESS_S_MAX
from tests.programs import QuickProgram
from tests.sampled import sampled
from tests.servers import S3Server

pytestmark = pytest.mark.s3

URL = "s3://bucket/home"

COMMANDS = [
    ("fsck", "-y", "--publish-local"),
    ("rollback", "--yes", "--at", "txg=1"),
    ("reclaim",),
    ("keep", "--auto"),
]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
# The number of the request before whose reply the signal arrives. Request 0 acquires the lease.
REQUESTS = [0, 1, 2, 4, 7]


@pytest.fixture
def url(program: QuickProgram, bucket: S3Server, request: pytest.FixtureRequest) -> str:
    """Return the URL of a filesystem with two txgs in the server's bucket."""
    program.environment |= {**bucket.environment(), "AWS_ENDPOINT_URL": bucket.endpoint_url}
    url = f"{URL}/{request.node.name}"
    program.ok("mkfs", "--plain", url)
    program.ok("fsck", "-y", "--publish-local", url)
    return url


@pytest.fixture
def proxy(bucket: S3Server) -> Iterator[S3Double]:
    """Return a proxy of the S3 server."""
    with s3_double(bucket.endpoint_url) as double:
        yield double


def _interrupt(
    proxy: S3Double, number: signal.Signals, at: int
) -> tuple["queue.Queue[subprocess.Popen[str]]", list[Seen]]:
    """Send a signal to a process at one of its requests; the process is read from the queue.

    Returns: the queue, and the growing list of requests since the lease was acquired.
    """
    processes: queue.Queue[subprocess.Popen[str]] = queue.Queue()
    since: list[Seen] = []

    def forward(seen: Seen) -> Forward:
        if since or (seen.method == "PUT" and seen.path.endswith("/lease")):
            since.append(seen)
        if len(since) == at + 1:
            processes.get(timeout=PROCESS_S_MAX).send_signal(number)
        return Forward()

    proxy.answer_always(forward)
    return processes, since


@pytest.mark.parametrize(
    ("words", "number", "at"),
    sampled(
        [(words, number, at) for at in REQUESTS for number in SIGNALS for words in COMMANDS], 19
    ),
)
def test_interrupted_command_releases_the_lease(
    url: str,
    program: QuickProgram,
    proxy: S3Double,
    words: tuple[str, ...],
    number: signal.Signals,
    at: int,
) -> None:
    """The command releases the lease, no matter at which request the signal arrives."""
    processes, since = _interrupt(proxy, number, at)
    options = ("--endpoint-url", proxy.url, "--cachedir", program.cachedir)
    command = program.begin(*words, url, *options, stdout=subprocess.DEVNULL)
    processes.put(command)
    _out, errors = command.communicate(timeout=PROCESS_S_MAX)

    assert len(since) > at, "the command sent too few requests"
    assert "interrupted" in errors or command.returncode == 0, errors
    assert command.returncode in {0, 32, 130}
    assert program.status(url)["holder"]["released"], errors
    other = QuickProgram(program.cachedir.with_name("other-state"))
    other.environment = program.environment
    assert other.run("fsck", "-y", url).returncode in {0, 1}
