"""Parsing of store URLs, and opening the store of a URL.

Owns: the forms of URLs, and the wrappers of every store.
Does not know: how stores carry out requests. boto3 is loaded only for a bucket, because loading
takes a third of a second.
"""

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from s3fs_meta.errors import AbsentDirectoryError, InvalidRequestError, UsageError
from s3fs_meta.objects.billing import Meter, MeteredStore
from s3fs_meta.objects.contract import ObjectStore, check_key
from s3fs_meta.objects.local import LocalStore
from s3fs_meta.objects.local_directory import is_absent
from s3fs_meta.objects.metrics import CountingStore
from s3fs_meta.objects.retry import Charge, RetryingStore, ignore_charge, ignore_notice

_FORMS: Final = "use local:///absolute/path or s3://bucket/prefix"
# A bucket name has 3 to 63 lower-case letters, digits, dots and hyphens.
# Source: Amazon S3 user guide, bucket naming rules.
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ENDPOINT: Final = re.compile(r"https?://[^/?#\s@]+(/[^?#\s]*)?")


class LocalAddress(NamedTuple):
    """The address of a local store: a directory."""

    root: Path


class S3Address(NamedTuple):
    """The address of a store in a bucket; *prefix* is empty or ends without a slash."""

    bucket: str
    prefix: str


StoreAddress = LocalAddress | S3Address


class S3Options(NamedTuple):
    """The settings of a bucket that its URL does not contain; None means the AWS default."""

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None


def parse(url: str) -> StoreAddress:
    """Return the address in *url*.

    Raises:
        UsageError: *url* has none of the known forms.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "local":
        if not rest.startswith("/"):
            raise UsageError(f"URL {url!r} has no absolute path; {_FORMS}")
        return LocalAddress(Path(rest))
    if scheme == "s3":
        bucket, _, path = rest.partition("/")
        return S3Address(_bucket(url, bucket), _prefix(url, path))
    if url.startswith("/"):
        raise UsageError(
            f"{url!r} is a path, not a URL: s3fs-meta status shows the URL of a mounted filesystem; "
            f"for objects in a local directory write local://{url}"
        )
    if ":" not in url:
        raise UsageError(
            f"{url!r} is not a URL; {_FORMS}; s3fs-meta status shows the URL of a mounted filesystem"
        )
    raise UsageError(f"URL {url!r} has an unknown scheme; {_FORMS}")


def without_effect(options: S3Options, *urls: str) -> str:
    """Return a warning if options have no effect because no URL refers to an S3 bucket; else "".

    Raises:
        UsageError: a URL is invalid.
    """
    given = [word for word, value in options._asdict().items() if value is not None]
    buckets = [url for url in urls if isinstance(parse(url), S3Address)]
    if not given or buckets:
        return ""
    return f"the option {given[0]} has no effect on {urls[0]!r}, because only s3:// URLs use it"


def require_bucket(options: S3Options, url: str) -> None:
    """Refuse options that have no effect on the URL of a new filesystem.

    The URL may be mistyped. On an existing filesystem, such options cause only a warning, so that
    the lines of fstab(5) and the scripts that contain them continue to work.

    Raises:
        UsageError: an option is given for a URL that refers to no S3 bucket, or the URL is invalid.
    """
    refusal = without_effect(options, url)
    if refusal:
        raise UsageError(refusal)


def options_of(url: str, options: S3Options) -> S3Options:
    """Return the options that a URL uses: none for a local store."""
    return S3Options() if isinstance(parse(url), LocalAddress) else options


def above(url: str) -> list[str]:
    """Return the URLs of the parents of *url* that may contain objects, nearest first.

    Raises:
        UsageError: *url* has none of the known forms.
    """
    address = parse(url)
    if isinstance(address, LocalAddress):
        parents = Path(os.path.realpath(address.root)).parents
        return [f"local://{parent}" for parent in parents if parent.is_dir()]
    names = address.prefix.split("/") if address.prefix else []
    return [
        f"s3://{address.bucket}/{'/'.join(names[:count])}".rstrip("/")
        for count in reversed(range(len(names)))
    ]


def _bucket(url: str, bucket: str) -> str:
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(f"URL {url!r} has no valid bucket name; {_FORMS}")
    return bucket


def _prefix(url: str, path: str) -> str:
    prefix = path.strip("/")
    try:
        if prefix:
            check_key(prefix)
    except InvalidRequestError as exc:
        raise UsageError(f"URL {url!r} has a prefix that some stores do not accept") from exc
    return prefix


def open_store(
    url: str,
    options: S3Options | None = None,
    *,
    make_root: bool = False,
    probe_only: bool = False,
    may_be_absent: bool = False,
    notify: Callable[[str], None] = ignore_notice,
    charge: Charge = ignore_charge,
) -> CountingStore:
    """Open the store at *url*, with retries and counts. Opening a local store may block.

    Args:
        url: a URL of one of the forms that ``parse`` accepts.
        options: settings of a bucket's store; without effect on a local store.
        make_root: True to create the directory of a local store, for mkfs.
        probe_only: True if the URL may not be that of a store, because the caller only looks for a
            few objects there. No file of a local directory is changed.
        may_be_absent: True to treat a missing or empty directory as a store that cannot be reached.
        notify, charge: arguments of ``RetryingStore``.

    Raises:
        AbsentDirectoryError: the directory does not exist or is empty.
        UsageError: the URL is invalid, its path is a file instead of a directory, or the endpoint
            of a bucket is invalid.
    """
    address, options = parse(url), options_of(url, options or S3Options())
    required = not (make_root or probe_only or may_be_absent)
    if isinstance(address, LocalAddress) and required:
        with contextlib.suppress(OSError):  # ``LocalStore`` reports the error
            if is_absent(address.root):
                raise AbsentDirectoryError(url)
    endpoint_url = options.endpoint_url
    if endpoint_url is not None and not _ENDPOINT.fullmatch(endpoint_url):
        raise UsageError(f"endpoint {endpoint_url!r} does not have the form https://host:port")
    meter = Meter()
    if isinstance(address, LocalAddress):
        local = LocalStore(
            address.root, make_root=make_root, probe_only=probe_only, may_be_absent=may_be_absent
        )
        bare: ObjectStore = MeteredStore(local, meter)
    else:
        bare = _open_bucket(address, options, meter)
    return CountingStore(RetryingStore(bare, notify=notify, charge=charge), meter)


def _open_bucket(address: S3Address, options: S3Options, meter: Meter) -> ObjectStore:
    from s3fs_meta.objects.s3 import S3Store  # the import loads boto3
    from s3fs_meta.objects.s3_access import S3Place

    return S3Store(address.bucket, address.prefix, S3Place(*options), meter=meter)
