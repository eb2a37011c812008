"""The S3 server versitygw on loopback, behind proxies that add latency.

Owns: the process of versitygw, and one proxy process per client. Each proxy counts the requests of
its client.
"""

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import boto3
from botocore.config import Config

from contrib.bench.latency import HOST
from contrib.bench.subjects import SubjectError, begin

ACCESS_KEY: Final = "s3fs-meta-bench"
SECRET_KEY: Final = "not-a-secret-at-all"
REGION: Final = "us-east-1"
STARTING_S_MAX: Final = 20.0
ENDING_S_MAX: Final = 10.0
# The environment variables from which each client reads its credentials.
CREDENTIALS: Final[Mapping[str, str]] = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWSACCESSKEYID": ACCESS_KEY,
    "AWSSECRETACCESSKEY": SECRET_KEY,
}


Traffic = Counter[str]  # Requests by kind, and transferred bytes by direction.


class FarEndpoint:
    """The proxy of one client, in a separate process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._port = int(self._line())

    @property
    def url(self) -> str:
        """Return the URL that the client connects to."""
        return f"http://{HOST}:{self._port}"

    def traffic(self) -> Traffic:
        """Return the numbers of requests and bytes that the proxy has forwarded."""
        assert self._process.stdin is not None, "the proxy was started with a pipe"
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Traffic(json.loads(self._line()))

    def _line(self) -> str:
        assert self._process.stdout is not None, "the proxy was started with a pipe"
        line = self._process.stdout.readline()
        if not line:
            raise SubjectError("the proxy between client and store exited unexpectedly")
        return line


class FarStore:
    """A running S3 server, whose buckets are directories below ``data``."""

    def __init__(self, port: int, data: Path, delay_ms: float, stack: contextlib.ExitStack) -> None:
        self._port = port
        self._stack = stack
        self.data = data
        self.delay_ms = delay_ms

    def endpoint(self) -> FarEndpoint:
        """Start a proxy for one client."""
        words = ["--to", str(self._port), "--delay-ms", str(self.delay_ms)]
        command = [sys.executable, "-m", "contrib.bench.latency", *words]
        process = begin(*command, stdin=subprocess.PIPE)
        self._stack.callback(_end, process)
        return FarEndpoint(process)

    def make_bucket(self, name: str) -> Path:
        """Create a bucket; return the directory that contains its objects as files."""
        client = boto3.client(
            "s3",
            endpoint_url=f"http://{HOST}:{self._port}",
            config=Config(s3={"addressing_style": "path"}),
        )
        client.create_bucket(Bucket=name)
        client.close()
        return self.data / name

    def adopt(self, bucket: Path) -> None:
        """Add the ETags that versitygw reads to objects that another program wrote."""
        for path in bucket.rglob("*"):
            if path.is_file():
                content_hash = hashlib.sha256(path.read_bytes()).hexdigest()
                os.setxattr(path, "user.etag", f'"{content_hash}"'.encode())


@contextlib.contextmanager
def running(scratch: Path, delay_ms: float) -> Iterator[FarStore]:
    """Run an S3 server with its objects below *scratch*; set the environment of all clients.

    Raises:
        SubjectError: versitygw is not installed or did not start.
    """
    program = shutil.which("versitygw") or str(Path.home() / "go" / "bin" / "versitygw")
    if not os.access(program, os.X_OK):
        raise SubjectError("versitygw is not installed; see CONTRIBUTING.md for how to install it")
    os.environ.update(CREDENTIALS)
    os.environ.pop("AWS_CA_BUNDLE", None)  # rclone rejects a CA bundle if the URL is plain HTTP.
    data = scratch / "s3"
    data.mkdir()
    port = _free_port()
    keys = ["--access", ACCESS_KEY, "--secret", SECRET_KEY, "--region", REGION]
    command = [program, "--port", f"{HOST}:{port}", *keys, "--quiet", "posix", str(data)]
    with (scratch / "s3.log").open("wb") as log, contextlib.ExitStack() as stack:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        stack.callback(_end, process)
        _wait_for(port, process)
        yield FarStore(port, data, delay_ms, stack)


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + STARTING_S_MAX
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port)):
            return
        time.sleep(0.02)
    raise SubjectError("the S3 server versitygw did not start")


def _end(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(ENDING_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
