"""The speed of uploads of one large file to a remote bucket.

*Plain* is the speed of boto3 without a filesystem. boto3 uploads the file in objects as large as a
pack, with the settings, connections and threads of s3fs-meta. The time of s3fs-meta includes
copying the file into an encrypted mount with default options, and waiting until all data is in the
bucket; the upload begins during the copy. One file is incompressible. The other file compresses to
about half its size, so that s3fs-meta sends less. The ratio compares the times per byte of file
content. Each measurement uses a new filesystem, and boto3 and s3fs-meta alternate.
"""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from contrib.bench import far_store, samples, sequential, targets, upload_stall
from contrib.bench.far_store import FarEndpoint, FarStore
from contrib.bench.far_subjects import FarS3fsSubject
from contrib.bench.names import OURS
from contrib.bench.subjects import call
from s3fs_meta.limits import MIB, PACK_BYTES_TARGET, STORE_THREADS_MAX
from s3fs_meta.objects.s3_access import S3ClientHolder, S3Place, content_md5

RATIO_MIN: Final = 0.9
PLAIN: Final = "plain"
KINDS: Final[Mapping[str, Callable[[Path, int], None]]] = {
    "incompressible": sequential.write_file,
    "compressible": upload_stall.write_file,
}


class Plain:
    """Uploads of a file with boto3, without a filesystem."""

    def __init__(self, store: FarStore) -> None:
        self.endpoint: FarEndpoint = store.endpoint()
        self._objects = store.make_bucket(PLAIN)
        self._holder = S3ClientHolder(S3Place(endpoint_url=self.endpoint.url))
        self._client = self._holder.client()

    def upload_s(self, source: Path) -> float:
        """Upload a file in pieces, then remove the pieces; return the seconds of the upload."""
        size_bytes = source.stat().st_size
        start = time.perf_counter()
        fd = os.open(source, os.O_RDONLY)
        try:
            with ThreadPoolExecutor(STORE_THREADS_MAX) as pool:
                places = range(0, size_bytes, PACK_BYTES_TARGET)
                total = sum(pool.map(lambda at: self._put(fd, at), places))
        finally:
            os.close(fd)
        seconds = time.perf_counter() - start
        assert total == size_bytes, f"uploaded {total} of {size_bytes} bytes"
        for path in self._objects.iterdir():
            if path.is_file():  # Skip directories, which contain the server's own files.
                path.unlink()
        return seconds

    def _put(self, fd: int, at: int) -> int:
        body = os.pread(fd, PACK_BYTES_TARGET, at)
        self._client.put_object(
            Bucket=PLAIN, Key=f"{at:016}", Body=body, ContentMD5=content_md5(body)
        )
        return len(body)

    def close(self) -> None:
        """Close the connections of the client."""
        self._holder.close()


def run(scratch: Path, *, upload_mib: int, rounds: int, delay_ms: float) -> dict[str, Any]:
    """Measure both kinds of files and return the results."""
    os.environ["S3FS_META_PASSPHRASE"] = upload_stall.PASSPHRASE
    with far_store.running(scratch, delay_ms) as store:
        plain = Plain(store)
        try:
            figures = {kind: _measured(scratch, kind, plain, store, upload_mib, rounds)
                       for kind in KINDS}  # fmt: skip
        finally:
            plain.close()
    return {
        "upload_mib": upload_mib,
        "delay_ms": delay_ms,
        "connections": STORE_THREADS_MAX,
        **figures,
        "targets": [
            targets.at_least(f"upload of {kind} data, of plain PUTs", row["ratio"], RATIO_MIN)
            for kind, row in figures.items()
        ],
    }


def _measured(
    scratch: Path, kind: str, plain: Plain, store: FarStore, upload_mib: int, rounds: int
) -> dict[str, Any]:
    """Upload one kind of file with each client alternately; return the results."""
    source = scratch / kind
    KINDS[kind](source, upload_mib * MIB)
    plain_s: list[float] = []
    taken: dict[str, list[float]] = {}
    for number in range(rounds):
        _settle_disk(source)
        plain_s.append(plain.upload_s(source))
        _settle_disk(source)
        for name, value in _upload(scratch / f"{kind}-{number}", store, source).items():
            taken.setdefault(name, []).append(value)
    source.unlink()
    return {
        "ratio": samples.ratio(plain_s, taken["seconds"]),
        PLAIN: {"seconds": samples.summary(plain_s)},
        OURS: {name: samples.summary(values) for name, values in taken.items()},
    }


def _settle_disk(source: Path) -> None:
    """Wait until the disk has written all data."""
    call("sync", "--file-system", source)


def _upload(root: Path, store: FarStore, source: Path) -> dict[str, float]:
    """Copy a file into a new filesystem; return the results of its upload."""
    subject = FarS3fsSubject(root, store)
    subject.make(())  # Without --plain, the filesystem is encrypted.
    with subject:
        subject.rest()
        before, before_s = subject.endpoint.traffic(), subject.cpu_s()
        start = time.perf_counter()
        shutil.copyfile(source, subject.mountpoint / "copy")
        copied_s = time.perf_counter() - start
        subject.wait_until_stored(1)
        seconds = time.perf_counter() - start
        processor_s = subject.cpu_s() - before_s
        traffic = subject.endpoint.traffic() - before
    assert subject.exit_status == 0, f"the daemon exited with status {subject.exit_status}"
    shutil.rmtree(root)
    shutil.rmtree(subject.objects, ignore_errors=True)
    return {
        "seconds": seconds,
        "copied, s": copied_s,
        "processor, s": processor_s,
        "sent, MiB": traffic["sent_bytes"] / MIB,
        "PUT": traffic["PUT"],
    }
