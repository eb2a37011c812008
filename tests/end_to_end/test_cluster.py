"""Tests of a store of several server processes, one of which is killed and restarted under load."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import boto3
import pytest
from botocore.config import Config

from contrib.cluster.minio import Cluster, find_program
from s3fs_meta.mount.existing import mount_table
from tests.polling import wait_until
from tests.programs import QuickProgram
from tests.servers import ACCESS_KEY, REGION, SECRET_KEY

pytestmark = [pytest.mark.mount, pytest.mark.s3, pytest.mark.slow]

URL = "s3://bucket/home"
FOLLOWS = "ro,follow,poll=0.3"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return a running cluster of store servers that has a bucket."""
    program = find_program()
    if program is None:
        pytest.skip("MinIO is not installed")
    folder = tmp_path / "cluster"
    folder.mkdir()
    with Cluster(program, folder, ACCESS_KEY, SECRET_KEY) as running:
        client = boto3.client(
            "s3",
            endpoint_url=running.endpoint_url(0),
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            config=Config(s3={"addressing_style": "path"}),
        )
        client.create_bucket(Bucket="bucket")
        client.close()
        yield running


class Machine(NamedTuple):
    """A host on which the filesystem is mounted."""

    program: QuickProgram
    mnt: Path

    @property
    def txg(self) -> int:
        """Return the last txg that the mount shows."""
        return int(self.program.status(self.mnt)["chain"]["txg"])

    def wait_for(self, txg: int) -> None:
        """Wait until the mount of a follower shows a given txg."""
        wait_until(lambda: self.txg >= txg, f"the follower does not show txg {txg}")


def machine(base: Path, cluster: Cluster, node: int) -> Machine:
    """Return a host that sends its requests to one node of the cluster."""
    program = QuickProgram(base / f"state-{node}")
    program.environment |= {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": cluster.endpoint_url(node),
    }
    mnt = base / f"mnt-{node}"
    mnt.mkdir()
    return Machine(program, mnt)


@pytest.fixture
def machines(cluster: Cluster, tmp_path: Path) -> Iterator[list[Machine]]:
    """Return three hosts with a mount each: one writer and two followers."""
    found = [machine(tmp_path, cluster, node) for node in range(3)]
    try:
        found[0].program.ok("mkfs", "--plain", URL)
        for one, words in zip(found, ["sync_interval=1", FOLLOWS, FOLLOWS], strict=True):
            one.program.ok("mount", "-o", words, URL, one.mnt)
        yield found
    finally:
        for one in found:
            if mount_table.find(str(one.mnt)) is not None:
                subprocess.run(["fusermount3", "-u", "-z", one.mnt], check=True)


@contextmanager
def writing(mnt: Path) -> Iterator[dict[str, bytes]]:
    """Write files continuously; yield a dictionary of the written files."""
    written: dict[str, bytes] = {}
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.02):
            name = f"file-{len(written)}"
            content = name.encode() * 2000
            (mnt / name).write_bytes(content)
            written[name] = content

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join()


def test_writer_and_followers_continue_while_a_store_node_is_dead(
    cluster: Cluster, machines: list[Machine]
) -> None:
    writer, *followers = machines
    with writing(writer.mnt) as written:
        for _ in range(2):
            before = writer.txg
            cluster.kill(3)
            for follower in followers:
                follower.wait_for(before + 3)
            cluster.start(3)
            cluster.wait_ready([3])
            for follower in followers:
                follower.wait_for(before + 6)
    writer.program.ok("flush", writer.mnt)
    for follower in followers:
        follower.wait_for(writer.txg)
        for name, content in written.items():
            assert (follower.mnt / name).read_bytes() == content
        follower.program.ok("umount", follower.mnt)
    writer.program.ok("umount", writer.mnt)
    writer.program.ok("fsck", "-n", "--deep", URL)
