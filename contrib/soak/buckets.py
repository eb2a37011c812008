"""Buckets on a local disk and on an S3 server, with access to objects and simulated outages."""

import contextlib
import os
import shutil
import signal
from pathlib import Path

import boto3
from botocore.config import Config

from tests.servers import ACCESS_KEY, REGION, SECRET_KEY, S3Server, running_versitygw

_UNFINISHED = "tmp/"


class LocalBucket:
    """A bucket in a local directory."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "bucket"
        self.url = f"local://{self._root}"
        self.environment: dict[str, str] = {}
        self.options: list[str] = []

    def keys(self) -> list[str]:
        """Return the names of all objects in the bucket."""
        found = (
            str(path.relative_to(self._root)) for path in self._root.rglob("*") if path.is_file()
        )
        return sorted(key for key in found if not key.startswith(_UNFINISHED))

    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        return (self._root / key).read_bytes()

    def put(self, key: str, data: bytes) -> None:
        """Store an object in the bucket."""
        path = self._root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def delete(self, key: str) -> None:
        """Delete an object from the bucket."""
        (self._root / key).unlink()

    def go_away(self, how: int) -> None:
        """Begin an outage, in which the store answers no request."""
        del how
        self._root.rename(self._root.with_name("bucket-away"))

    def come_back(self) -> None:
        """End the outage of the store."""
        if self._root.with_name("bucket-away").exists():
            # s3fs-meta should not have recreated the directory, but the rename needs a free name.
            if self._root.exists():
                shutil.rmtree(self._root)
            self._root.with_name("bucket-away").rename(self._root)

    def close(self) -> None:
        """Do nothing, because a local bucket has no server."""


class S3Bucket:
    """A bucket on an S3 server that the run starts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "server"
        self._folder.mkdir()
        self._context = contextlib.ExitStack()
        server = self._context.enter_context(running_versitygw(self._folder))
        self._server: S3Server | None = server
        server.make_bucket("bucket")
        self._port = int(server.endpoint_url.rpartition(":")[2])
        self.url = "s3://bucket/soak"
        self.environment = server.environment()
        self.options = ["--endpoint-url", server.endpoint_url]
        self._client = boto3.client(
            "s3",
            endpoint_url=server.endpoint_url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            config=Config(s3={"addressing_style": "path"}),
        )

    def keys(self) -> list[str]:
        """Return the names of all objects in the bucket."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket="bucket", Prefix="soak/"
        )
        return sorted(
            found["Key"].removeprefix("soak/")
            for page in pages
            for found in page.get("Contents", [])
        )

    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        answer = self._client.get_object(Bucket="bucket", Key=f"soak/{key}")
        return bytes(answer["Body"].read())

    def put(self, key: str, data: bytes) -> None:
        """Store an object in the bucket."""
        self._client.put_object(Bucket="bucket", Key=f"soak/{key}", Body=data)

    def delete(self, key: str) -> None:
        """Delete an object from the bucket."""
        self._client.delete_object(Bucket="bucket", Key=f"soak/{key}")

    def go_away(self, how: int) -> None:
        """Begin an outage: close the S3 server, or stop its process with SIGSTOP."""
        assert self._server is not None
        assert self._server.process is not None
        if how % 2:
            os.kill(self._server.process.pid, signal.SIGSTOP)
        else:
            self._context.close()
            self._server = None

    def come_back(self) -> None:
        """End the outage of the S3 server."""
        if self._server is None:
            server = running_versitygw(self._folder, port=self._port)
            self._server = self._context.enter_context(server)
        elif self._server.process is not None:
            os.kill(self._server.process.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop the S3 server."""
        if self._server is not None and self._server.process is not None:
            # This call has no effect if the process has exited.
            self._server.process.send_signal(signal.SIGCONT)
        self._context.close()


Bucket = LocalBucket | S3Bucket
