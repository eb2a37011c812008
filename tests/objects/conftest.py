"""Fixtures: a server with programmed responses, and a proxy for a real S3 server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.objects.s3 import S3Store
from s3fs_meta.objects.s3_access import S3Place
from tests.fast_folders import fast_folder
from tests.objects.s3_double import BUCKET, S3Double, s3_double
from tests.servers import S3Server, certificate, s3_server, server_folder  # noqa: F401 - the imports are fixtures


@pytest.fixture(autouse=True)
def aws_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the credentials of the tests, and hide the user's own credentials."""
    for name, value in S3Server("", "", None, None).environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def root() -> Iterator[Path]:
    """Return the empty bucket directory of a local store."""
    with fast_folder() as folder:
        (folder / "bucket").mkdir()
        yield folder / "bucket"


@pytest.fixture(scope="session")
def lasting_double() -> Iterator[S3Double]:
    """Return one server with programmed responses for all tests of the session."""
    with s3_double() as double:
        yield double


@pytest.fixture
def double(lasting_double: S3Double) -> Iterator[S3Double]:
    """Return a server that responds with 500 unless a test programs a response."""
    lasting_double.reset()
    yield lasting_double
    lasting_double.reset()


@pytest.fixture(scope="session")
def lasting_proxy(s3_server: S3Server) -> Iterator[S3Double]:  # noqa: F811 - the parameter is a fixture
    """Return a proxy that forwards requests to the real server."""
    s3_server.make_bucket(BUCKET)
    with s3_double(s3_server.endpoint_url) as double:
        yield double


@pytest.fixture
def proxy(lasting_proxy: S3Double) -> S3Double:
    """Return a proxy that forwards each request unless a test programs a response."""
    lasting_proxy.reset()
    return lasting_proxy


@pytest.fixture
def store(double: S3Double) -> S3Store:
    """Return a store on the server with programmed responses."""
    return S3Store(BUCKET, "", S3Place(double.url))


@pytest.fixture
def real_store(proxy: S3Double, request: pytest.FixtureRequest) -> S3Store:
    """Return an empty store on the real server, behind the proxy."""
    return S3Store(BUCKET, request.node.name, S3Place(proxy.url))
