"""The contract suite, run on every kind of store."""

import itertools
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import pytest

from s3fs_meta.objects.billing import Meter, MeteredStore
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.local import LocalStore
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.objects.metrics import CountingStore
from s3fs_meta.objects.retry import RetryingStore
from s3fs_meta.objects.s3 import S3Store
from s3fs_meta.objects.s3_access import S3Place
from s3fs_meta.objects.urls import open_store
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.contract.store_contract import CASES, LONG_CASES, SLOW_CASES, Case
from tests.fast_folders import fast_folder
from tests.servers import S3Server

BUCKET = "contract"

IN_PROCESS: dict[str, Callable[[Path], ObjectStore]] = {
    "memory": lambda _: MemoryStore(),
    "local": LocalStore,
    "retrying": lambda _: RetryingStore(MemoryStore()),
    "counting": lambda _: CountingStore(MemoryStore()),
    "metered": lambda _: MeteredStore(MemoryStore(), Meter()),
    "faulty": lambda _: FaultyStore(MemoryStore()),
    "opened": lambda folder: open_store(f"local://{folder}", make_root=True),
}
ON_SERVERS = {"http": "s3_server", "https": "s3_tls_server", "second make": "s3_second_server"}

# The S3 simulator moto responds to some concurrent requests with status 500.
# A TLS handshake can fail while urllib3 replaces a protocol list (python/cpython#141012).
# A transient error is raised as TransientStoreError and retried, as in the program.

_prefixes = (f"store-{number}" for number in itertools.count())
_with_bucket: set[S3Server] = set()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return an empty directory on a fast disk."""
    with fast_folder() as empty:
        yield empty


@pytest.fixture
async def store(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[ObjectStore, None]:
    """Return an empty store of the requested kind."""
    if request.param in IN_PROCESS:
        opened = IN_PROCESS[request.param](folder)
        yield opened
        await opened.close()
        return
    server: S3Server = request.getfixturevalue(ON_SERVERS[request.param])
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    if server not in _with_bucket:
        server.make_bucket(BUCKET)
        _with_bucket.add(server)
    bucket_store = S3Store(BUCKET, next(_prefixes), S3Place(server.endpoint_url))
    yield RetryingStore(bucket_store)
    await bucket_store.close()


def runs(cases: list[Case], stores: list[str], *marks: pytest.MarkDecorator) -> Iterator[object]:
    """Yield one parameter set for each combination of store and test case."""
    for kind, case in itertools.product(stores, cases):
        yield pytest.param(kind, case, marks=marks, id=f"{kind}-{case.__name__}")


@pytest.mark.parametrize(
    ("store", "case"),
    [
        *runs(CASES + LONG_CASES, list(IN_PROCESS)),
        *runs(SLOW_CASES, list(IN_PROCESS), pytest.mark.slow),
        *runs(CASES, ["http", "https"], pytest.mark.s3),
        *runs(LONG_CASES, ["http"], pytest.mark.s3),
        *runs(LONG_CASES, ["https"], pytest.mark.s3, pytest.mark.slow),
        *runs(SLOW_CASES, ["http"], pytest.mark.s3, pytest.mark.slow),
        *runs(CASES + LONG_CASES, ["second make"], pytest.mark.s3, pytest.mark.slow),
    ],
    indirect=["store"],
)
async def test_every_kind_of_store_passes_the_contract_suite(
    store: ObjectStore, case: Case
) -> None:
    await case(store)
