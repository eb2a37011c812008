"""Real S3 servers on loopback, for tests.

This module finds a server program, starts the server on a free port, and stops it. It uses
versitygw if it is installed, because versitygw checks signatures, clocks and checksums. Otherwise
it uses moto's server, which the test requirements install. Slow tests also use MinIO. See
``docs/design/testing.md``.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import boto3
import pytest
import trustme
from botocore.config import Config

from tests.polling import PROCESS_S_MAX

ACCESS_KEY: Final = "s3fs-meta-test"
SECRET_KEY: Final = "not-a-secret-at-all"
REGION: Final = "us-east-1"
ENDING_S_MAX: Final = 5.0
_OUTGOING_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORT_MIN: Final = 10_000

_reserved: list[socket.socket] = []


class Certificate(NamedTuple):
    """PEM files of a server on 127.0.0.1, and of the authority that clients must trust."""

    certificate: Path
    private_key: Path
    authority: Path


class S3Server(NamedTuple):
    """The URL and the credentials of a running server."""

    make: str
    endpoint_url: str
    data: Path | None  # The directory of the objects if the server stores objects as files.
    certificate: Certificate | None
    # Some tests stop the process of the server.
    process: "subprocess.Popen[bytes] | None" = None

    def environment(self) -> dict[str, str]:
        """Return the environment variables from which boto3 reads the credentials."""
        variables = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }
        if self.certificate is not None:
            variables["AWS_CA_BUNDLE"] = str(self.certificate.authority)
        return variables

    def make_bucket(self, name: str) -> None:
        """Create a bucket on the server."""
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            verify=str(self.certificate.authority) if self.certificate else None,
            config=Config(s3={"addressing_style": "path"}),
        )
        client.create_bucket(Bucket=name)
        client.close()


def versitygw_program() -> str | None:
    """Return the path of versitygw on PATH, or in the directory of ``go install``."""
    return _program("versitygw")


def minio_program() -> str | None:
    """Return the path of the MinIO server on PATH, or in the directory of ``go install``."""
    return _program("minio")


def _program(name: str) -> str | None:
    found = shutil.which(name)
    if found is not None:
        return found
    for folder in _go_program_folders():
        if os.access(folder / name, os.X_OK):
            return str(folder / name)
    return None


def _go_program_folders() -> Iterator[Path]:
    if "GOBIN" in os.environ:
        yield Path(os.environ["GOBIN"])
    if shutil.which("go") is not None:
        done = subprocess.run(["go", "env", "GOPATH"], capture_output=True, text=True, check=False)
        yield Path(done.stdout.strip()) / "bin"
    yield Path.home() / "go" / "bin"


@contextlib.contextmanager
def running_s3(folder: Path, certificate: Certificate | None = None) -> Iterator[S3Server]:
    """Run the best available server; *folder* receives its data and its log."""
    start = running_moto if versitygw_program() is None else running_versitygw
    with start(folder, certificate) as server:
        print(f"S3 server for tests: {server.make} at {server.endpoint_url}")  # noqa: T201
        yield server


@contextlib.contextmanager
def running_versitygw(
    folder: Path, certificate: Certificate | None = None, port: int | None = None
) -> Iterator[S3Server]:
    """Run versitygw, which stores objects as files.

    The argument *port* restarts it on its old port.
    """
    program = versitygw_program()
    assert program is not None, "versitygw is not installed"
    data, versions = folder / "data", folder / "versions"
    data.mkdir(exist_ok=True)
    versions.mkdir(exist_ok=True)
    port = free_port() if port is None else port
    options = ["--port", f"127.0.0.1:{port}", "--access", ACCESS_KEY, "--secret", SECRET_KEY]
    options += ["--region", REGION, "--quiet"]
    if certificate is not None:
        options += ["--cert", str(certificate.certificate), "--key", str(certificate.private_key)]
    backend = ["posix", "--versioning-dir", str(versions), str(data)]
    with _running([program, *options, *backend], folder, port) as process:
        yield S3Server("versitygw", _url(port, certificate), data, certificate, process)


@contextlib.contextmanager
def running_moto(folder: Path, certificate: Certificate | None = None) -> Iterator[S3Server]:
    """Run moto's server, which stores objects in memory and checks no credentials."""
    port = free_port()
    options = ["-H", "127.0.0.1", "-p", str(port)]
    if certificate is not None:
        options += ["-s", "-c", str(certificate.certificate), "-k", str(certificate.private_key)]
    with _running([sys.executable, "-m", "moto.server", *options], folder, port) as process:
        yield S3Server("moto", _url(port, certificate), None, certificate, process)


@contextlib.contextmanager
def running_minio(folder: Path, certificate: Certificate | None = None) -> Iterator[S3Server]:
    """Run MinIO as one node with four folders as disks."""
    program = minio_program()
    assert program is not None, "minio is not installed"
    assert certificate is None, "MinIO with https is not supported by these tests"
    port = free_port()
    disks = [str(folder / f"disk{number}") for number in range(1, 5)]
    variables = {
        "MINIO_ROOT_USER": ACCESS_KEY,
        "MINIO_ROOT_PASSWORD": SECRET_KEY,
        "MINIO_CI_CD": "1",  # This variable lets MinIO use directories on the root disk.
        "MINIO_BROWSER": "off",
    }
    command = [program, "server", "--quiet", "--address", f"127.0.0.1:{port}", *disks]
    with _running(command, folder, port, variables) as process:
        yield S3Server("minio", _url(port, certificate), None, certificate, process)


def _url(port: int, certificate: Certificate | None) -> str:
    return f"{'http' if certificate is None else 'https'}://127.0.0.1:{port}"


def free_port() -> int:
    """Return a free TCP port, and reserve it for this process until it ends.

    The kernel chooses the ports of outgoing connections from another range (ip(7)). Otherwise, a
    connection of another test could use the port before the server starts, or while it restarts.
    """
    low, _high = map(int, _OUTGOING_PORTS.read_text().split())
    for port in range(_PORT_MIN, max(low, 2 * _PORT_MIN)):
        # The name of an abstract socket is unique on this host, so it serves as a lock (unix(7)).
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0s3fs-meta-tests-port-{port}")
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _reserved.append(lock)
        return port
    raise RuntimeError("no free port for a server")


@contextlib.contextmanager
def _running(
    command: Sequence[str], folder: Path, port: int, variables: dict[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run *command* until the context ends; its output is written to ``server.log``."""
    log_path = folder / "server.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(variables or {})},
        )
    try:
        _wait_until_it_answers(process, port, log_path)
        yield process
    finally:
        _end(process)


def _wait_until_it_answers(process: "subprocess.Popen[bytes]", port: int, log_path: Path) -> None:
    deadline_s = time.monotonic() + PROCESS_S_MAX
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    text = log_path.read_text(errors="replace")
    raise RuntimeError(f"the server {process.args!r} did not start:\n{text}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(ENDING_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# --- fixtures that start a server -----------------------------------------------------------------


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    """Return a directory for server data, in memory if files in memory can have xattrs."""
    base = "/dev/shm" if _takes_attributes(Path("/dev/shm")) else None
    with tempfile.TemporaryDirectory(prefix="s3fs-meta-servers-", dir=base) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def certificate(server_folder: Path) -> Certificate:
    """Return a certificate for loopback, signed by a test authority."""
    paths = Certificate(*(server_folder / f"{name}.pem" for name in Certificate._fields))
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(paths.authority))
    issued.private_key_pem.write_to_path(str(paths.private_key))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(paths.certificate), append=True)
    return paths


@pytest.fixture(scope="session")
def s3_server(server_folder: Path) -> Iterator[S3Server]:
    """Return the best available S3 server, which serves HTTP."""
    with running_s3(_made(server_folder / "http")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_tls_server(server_folder: Path, certificate: Certificate) -> Iterator[S3Server]:
    """Return the best available S3 server, which serves HTTPS."""
    with running_s3(_made(server_folder / "https"), certificate) as server:
        yield server


@pytest.fixture(scope="session")
def s3_second_server(server_folder: Path) -> Iterator[S3Server]:
    """Return a server of another implementation: MinIO if installed, otherwise moto."""
    start = running_moto if minio_program() is None else running_minio
    with start(_made(server_folder / "second")) as server:
        yield server


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _takes_attributes(folder: Path) -> bool:
    """Return whether files in *folder* can have user xattrs, in which versitygw stores ETags."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            os.setxattr(file.name, "user.test", b"")
    except OSError:
        return False
    return True
