"""s3fs-meta and other filesystems that store their data in buckets with added latency.

Each filesystem has its own endpoint, and can be mounted without local state. A benchmark can wait
until all written files are in the bucket.
"""

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from typing_extensions import override

from contrib.bench import subjects
from contrib.bench.far_store import ACCESS_KEY, REGION, SECRET_KEY, FarEndpoint, FarStore
from contrib.bench.local_subjects import JuiceSubject, juicefs
from contrib.bench.names import OURS
from contrib.bench.subjects import DaemonSubject, S3fsSubject

STORED_S_MAX: Final = 3600.0
POLL_S: Final = 0.05


class FarSubject(DaemonSubject):
    """A filesystem with its own bucket and endpoint."""

    def __init__(self, name: str, root: Path, store: FarStore) -> None:
        super().__init__(name, root)
        self.endpoint: FarEndpoint = store.endpoint()
        self.bucket_name = root.name
        self.objects: Path = store.make_bucket(self.bucket_name)
        self._forgotten = 0

    @property
    def cache(self) -> Path:
        """Return the directory of the local state, if the filesystem has local state."""
        return self.root / f"cache-{self._forgotten}"

    def make(self) -> None:
        """Create the filesystem; do nothing for kinds that need no creation step."""

    def wait_until_stored(self, files: int) -> None:
        """Wait until *files* files are in the bucket.

        By default this method does nothing, because most filesystems upload a file at close.
        """

    def forget(self) -> None:
        """Use a new empty directory for local state; the filesystem must be unmounted.

        The old directory is not removed, because ext4 makes files more slowly after many deletions.
        """
        self._forgotten += 1


class FarS3fsSubject(FarSubject, S3fsSubject):
    """s3fs-meta; its local state includes the metadata database."""

    def __init__(
        self, root: Path, store: FarStore, options: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(OURS, root, store)
        self.options = {"endpoint_url": self.endpoint.url, **(options or {})}

    @property
    @override
    def url(self) -> str:
        """Return the bucket's URL."""
        return f"s3://{self.bucket_name}/fs"

    @override
    def make(self, arguments: Sequence[str] = ("--plain",)) -> None:
        """Make the filesystem."""
        S3fsSubject.make(self, ["--endpoint-url", self.endpoint.url, *arguments])

    @override
    def forget(self) -> None:
        """Use a new empty state directory."""
        super().forget()
        self.state = self.cache

    @override
    def wait_until_stored(self, files: int) -> None:
        """Upload all changes with ``s3fs-meta flush``."""
        subjects.call(*self.words("flush"))


class RcloneSubject(FarSubject):
    """``rclone mount`` with its full cache mode."""

    @override
    def command(self) -> list[str]:
        """Return the command that serves the mount in the foreground."""
        remote = f':s3,provider=Other,env_auth=true,endpoint="{self.endpoint.url}":'
        options = ["--vfs-cache-mode", "full", "--vfs-write-back", "0s"]
        options += ["--cache-dir", str(self.cache), "--config", os.devnull]
        return ["rclone", "mount", *options, f"{remote}{self.bucket_name}", str(self.mountpoint)]

    @override
    def wait_until_stored(self, files: int) -> None:
        """Wait until the bucket has *files* objects, because rclone uploads after close."""
        deadline = time.monotonic() + STORED_S_MAX
        while _count_files(self.objects) < files:
            if time.monotonic() > deadline:
                raise subjects.SubjectError(
                    f"{self.name} did not upload all data within {STORED_S_MAX:g} s"
                )
            time.sleep(POLL_S)


class S3fsFuseSubject(FarSubject):
    """s3fs-fuse, which stores each file as one object."""

    @override
    def command(self) -> list[str]:
        """Return the command that serves the mount in the foreground."""
        options = f"url={self.endpoint.url},use_path_request_style"
        return ["s3fs", self.bucket_name, str(self.mountpoint), "-f", "-o", options]


class MountpointSubject(FarSubject):
    """mountpoint-s3, which stores each file as one object and rejects changes of attributes."""

    @override
    def command(self) -> list[str]:
        """Return the command that serves the mount in the foreground."""
        options = ["--endpoint-url", self.endpoint.url, "--region", REGION, "--force-path-style"]
        options += ["--allow-delete", "--foreground"]
        return ["mount-s3", *options, self.bucket_name, str(self.mountpoint)]


class FarJuiceSubject(FarSubject, JuiceSubject):
    """JuiceFS with its metadata in a local SQLite database."""

    @override
    def store(self) -> list[str]:
        """Return the options that select the store."""
        keys = ["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]
        return ["--storage", "s3", "--bucket", f"{self.endpoint.url}/{self.bucket_name}", *keys]

    @override
    def make(self) -> None:
        """Make the filesystem."""
        JuiceSubject.make(self)


def peers(
    scratch: Path, store: FarStore, *, unpacks: bool = True
) -> tuple[list[FarSubject], list[str]]:
    """Return the other installed filesystems, and the names of missing filesystems.

    Args:
        unpacks: True to omit filesystems into which tar cannot unpack an archive.
    """
    known: list[tuple[str, str | None, Callable[[str, Path, FarStore], FarSubject]]] = [
        ("JuiceFS", juicefs(), FarJuiceSubject),
        ("rclone mount", shutil.which("rclone"), RcloneSubject),
        ("s3fs", shutil.which("s3fs"), S3fsFuseSubject),
    ]
    if not unpacks:
        known.append(("mountpoint-s3", shutil.which("mount-s3"), MountpointSubject))
    here = [
        make(name, scratch / name.split()[0].lower(), store) for name, found, make in known if found
    ]
    return here, [name for name, found, _make in known if not found]


def _count_files(root: Path) -> int:
    return sum(len(files) for _folder, _folders, files in os.walk(root))
