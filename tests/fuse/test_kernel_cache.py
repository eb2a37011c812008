"""Tests of invalidating the kernel's caches when a follower switches to a new txg."""

import errno

import pyfuse3
import pytest

from s3fs_meta.fuse.convert import Converter
from s3fs_meta.fuse.kernel_cache import KernelCache
from s3fs_meta.limits import ENTRY_TIMEOUT_S
from s3fs_meta.model import ROOT_INO, Ino
from s3fs_meta.sync.kernel import SwitchChanges
from tests.fuse.conftest import Context, Handlers

KNOWN, UNKNOWN = Ino(1000), Ino(2000)
TURNED = SwitchChanges(
    {(ROOT_INO, b"a"), (KNOWN, b"b"), (UNKNOWN, b"c")}, {KNOWN, UNKNOWN}, {KNOWN, UNKNOWN}
)


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Return a list of the invalidations that are sent to the kernel."""
    heard: list[tuple[object, ...]] = []

    def entry(parent: int, name: bytes) -> None:
        heard.append((parent, name))
        raise OSError(errno.ENOENT, "unknown")

    def inode(ino: int, *, attr_only: bool) -> None:
        heard.append((ino, "attributes" if attr_only else "content"))
        raise OSError(errno.ENOENT, "unknown")

    monkeypatch.setattr(pyfuse3, "invalidate_entry", entry)
    monkeypatch.setattr(pyfuse3, "invalidate_inode", inode)
    return heard


@pytest.fixture
def converter() -> Converter:
    """Return a converter of attributes for the kernel."""
    return Converter(65536)


@pytest.fixture
def cache(handlers: Handlers, converter: Converter) -> KernelCache:
    """Return the invalidation of the caches of a kernel that has looked up one inode."""
    handlers.fs.lookups.add(KNOWN)
    return KernelCache(converter, handlers.fs)


async def test_only_entries_that_the_kernel_may_have_cached_are_invalidated(
    cache: KernelCache, reported: list[tuple[object, ...]]
) -> None:
    """Names, listings and attributes are invalidated before and after the switch to a txg.

    File content is invalidated only after the switch. Inodes that the kernel has not looked up are
    not invalidated.
    """
    names = {(ROOT_INO, b"a"), (KNOWN, b"b"), (ROOT_INO, "content"), (KNOWN, "content")}
    await cache.before_switch(TURNED)
    assert set(reported) == names | {(KNOWN, "attributes")}
    reported.clear()

    cache.at_switch()
    await cache.after_switch(TURNED)
    assert set(reported) == names | {(KNOWN, "attributes")}
    assert reported.count((KNOWN, "content")) == 2


async def test_kernel_caches_nothing_while_a_new_txg_is_prepared(
    handlers: Handlers, cache: KernelCache, converter: Converter, reported: list[tuple[object, ...]]
) -> None:
    """Until the switch to a new txg, replies to the kernel have a timeout of 0."""
    await cache.before_switch(TURNED)
    assert not any(converter.no_entry_out())
    assert converter.entry(handlers.fs.getattr(ROOT_INO)).attr_timeout == 0.0

    cache.at_switch()

    assert any(converter.no_entry_out())
    assert converter.entry(handlers.fs.getattr(ROOT_INO)).attr_timeout == ENTRY_TIMEOUT_S
    assert reported


async def test_capability_of_an_open_file_is_looked_up_again_after_a_new_txg(
    handlers: Handlers, cache: KernelCache, reported: list[tuple[object, ...]]
) -> None:
    record = handlers.fs.open_files.opened(KNOWN)
    assert handlers.fs.xattrs.lacks_capability(KNOWN)

    await cache.after_switch(TURNED)

    assert (KNOWN, "content") in reported
    assert record.has_capability is None


async def test_all_kernel_caches_are_invalidated_if_the_changes_are_unknown(
    handlers: Handlers, cache: KernelCache, reported: list[tuple[object, ...]]
) -> None:
    root, context = ROOT_INO, Context()
    await handlers.operations.mkdir(root, b"known", 0o755, context)
    unknown = await handlers.operations.mkdir(root, b"unknown", 0o755, context)
    await handlers.operations.mkdir(Ino(unknown.st_ino), b"below", 0o755, context)
    handlers.fs.forget(Ino(unknown.st_ino), 1)

    await cache.before_switch(None)

    names = {name for _, name in reported if isinstance(name, bytes)}
    assert names == {b"known", b"unknown"}
    assert (KNOWN, "content") in reported
    assert (unknown.st_ino, "content") not in reported
    assert handlers.fs.lookups.count(Ino(unknown.st_ino)) == 0
