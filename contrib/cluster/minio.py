"""One S3 store of four MinIO servers on one machine; each server can be killed and restarted.

Owns: the processes of the servers. Does not know: s3fs-meta.
Source: https://min.io/docs, "Deploy MinIO: Multi-Node Multi-Drive".
"""

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

NODES: Final = 4
STARTING_S_MAX: Final = 60.0
ENDING_S_MAX: Final = 10.0
POLL_S: Final = 0.1


class ClusterError(Exception):
    """The MinIO cluster did not start."""


class Cluster:
    """A store of several MinIO servers, with data and logs in *folder*."""

    def __init__(
        self, program: str, folder: Path, access_key: str, secret_key: str, nodes: int = NODES
    ) -> None:
        self._program = program
        self._folder = folder
        self._environment = {
            **os.environ,
            "MINIO_ROOT_USER": access_key,
            "MINIO_ROOT_PASSWORD": secret_key,
            # MinIO refuses several drives on one disk unless this variable is set.
            "MINIO_CI_CD": "1",
            "MINIO_BROWSER": "off",
        }
        self._host = _own_address()
        self._ports = _free_ports(self._host, nodes)
        self._drives = [
            f"http://{self._host}:{port}{folder / f'drive-{number}'}"
            for number, port in enumerate(self._ports)
        ]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * nodes

    def endpoint_url(self, node: int) -> str:
        """Return the URL of a node; all nodes serve the same objects."""
        return f"http://{self._host}:{self._ports[node]}"

    def start(self, node: int) -> None:
        """Start a node without waiting until it is ready."""
        log = (self._folder / f"node-{node}.log").open("ab")
        with log:
            self.processes[node] = subprocess.Popen(
                [
                    self._program,
                    "server",
                    "--quiet",
                    "--address",
                    f"{self._host}:{self._ports[node]}",
                    *self._drives,
                ],
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def kill(self, node: int) -> None:
        """Kill a node of the cluster."""
        process = self.processes[node]
        self.processes[node] = None
        if process is not None:
            process.kill()
            process.wait()

    def wait_ready(self, nodes: Sequence[int] | None = None) -> None:
        """Wait until the started nodes can read and write.

        Raises:
            ClusterError: a node does not become ready.
        """
        deadline_s = time.monotonic() + STARTING_S_MAX
        for node in range(len(self._ports)) if nodes is None else nodes:
            while not self._is_ready(node):
                process = self.processes[node]
                if process is None or process.poll() is not None or time.monotonic() > deadline_s:
                    log = (self._folder / f"node-{node}.log").read_text(errors="replace")
                    raise ClusterError(
                        f"node {node} of the cluster exited, or was not ready within "
                        f"{STARTING_S_MAX:g} s; the end of its log:\n{log[-2000:]}"
                    )
                time.sleep(POLL_S)

    def _is_ready(self, node: int) -> bool:
        try:
            with urllib.request.urlopen(
                f"{self.endpoint_url(node)}/minio/health/cluster", timeout=5
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def __enter__(self) -> "Cluster":
        for number in range(len(self._ports)):
            (self._folder / f"drive-{number}").mkdir(parents=True, exist_ok=True)
            self.start(number)
        try:
            self.wait_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        for process in self.processes:
            if process is not None:
                process.terminate()
        for number, process in enumerate(self.processes):
            if process is not None:
                try:
                    process.wait(ENDING_S_MAX)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            self.processes[number] = None


def find_program() -> str | None:
    """Return the path of MinIO's server, in PATH or in ``~/go/bin``."""
    found = shutil.which("minio")
    beside = Path.home() / "go" / "bin" / "minio"
    return found or (str(beside) if os.access(beside, os.X_OK) else None)


def _own_address() -> str:
    """Return the machine's address in a container, as MinIO requires; else 127.0.0.1."""
    if not Path("/.dockerenv").exists():
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # connect() of a UDP socket sends no packet. RFC 5737 reserves the address.
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def _free_ports(host: str, count: int) -> list[int]:
    listeners = [socket.socket() for _ in range(count)]
    try:
        for listener in listeners:
            listener.bind((host, 0))
        return [listener.getsockname()[1] for listener in listeners]
    finally:
        for listener in listeners:
            listener.close()
