"""A wrapper around a store that fails on request.

Owns: the requested faults. Each fault applies to the next calls of one method, or of any method
(``ANY``). The methods are ``now``, ``get``, ``get_range``, ``put``, ``create``, ``replace``,
``delete`` and ``list``. The faults of a method happen in the order of the requests.
"""

import enum
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

import trio

from s3fs_meta.errors import StoreError, TransientStoreError
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ETag, Fetched, ObjectInfo, ObjectStore, StoreWrapper

ANY: Final = "any"
WRITES: Final = ("put", "create", "replace", "delete")


class Call(NamedTuple):
    """A recorded call; *key* is the first key of a delete, or the prefix of a list."""

    method: str
    key: str


class StoreGate:
    """Blocks the calls of one method until ``open`` is called."""

    def __init__(self) -> None:
        self._started = trio.Event()
        self._opened = trio.Event()

    async def wait_started(self) -> None:
        """Wait until a call of the store is blocked at the gate."""
        await self._started.wait()

    def open(self) -> None:
        """Let blocked calls continue, and let later calls pass."""
        self._opened.set()

    async def pass_through(self) -> None:
        """Wait until a test opens the gate."""
        self._started.set()
        await self._opened.wait()


class FaultKind(enum.Enum):
    """The kinds of injected faults, each with a different effect on one call."""

    FAIL = enum.auto()
    LOSE_REPLY = enum.auto()
    CORRUPT = enum.auto()
    SHORTEN = enum.auto()


class Fault(NamedTuple):
    """One injected fault, which applies to one call of the store."""

    kind: FaultKind
    error: StoreError | None = None


class FaultyStore(StoreWrapper):
    """A store that injects the requested faults into calls of an inner store."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.calls: list[Call] = []
        self.down: StoreError | None = None  # error that all calls raise; None to let them succeed
        self.ignores_conditions = False  # True if create and replace ignore their conditions
        self._faults: dict[str, deque[Fault]] = {}
        self._gates: dict[str, StoreGate] = {}

    # --- injected faults of requests --------------------------------------------------------

    def fail(self, method: str, error: StoreError | None = None, *, times: int = 1) -> None:
        """Make the next calls raise *error*, by default a transient error, without any effect."""
        self._order(method, Fault(FaultKind.FAIL, error), times)

    def lose_reply(self, method: str, *, times: int = 1) -> None:
        """Make the next calls of a method take effect and then raise TransientStoreError."""
        assert method in {*WRITES, "list"}, "for a read, a lost reply is the same as a failure"
        self._order(method, Fault(FaultKind.LOSE_REPLY), times)

    def corrupt(self, method: str, *, times: int = 1) -> None:
        """Make the next calls of get or get_range return bytes with a flipped bit in the middle."""
        assert method in {"get", "get_range"}, "only replies with bytes can be corrupt"
        self._order(method, Fault(FaultKind.CORRUPT), times)

    def shorten(self, method: str, *, times: int = 1) -> None:
        """Make the next calls of get return only the first half of an object."""
        assert method == "get", "a get_range checks its own length"
        self._order(method, Fault(FaultKind.SHORTEN), times)

    def hold(self, method: str) -> StoreGate:
        """Block every call of *method* at the returned gate, before it reaches the store."""
        gate = self._gates[method] = StoreGate()
        return gate

    def clear(self) -> None:
        """Drop the requested faults that have not happened yet; gates remain."""
        self._faults.clear()

    def _order(self, method: str, fault: Fault, times: int) -> None:
        self._faults.setdefault(method, deque()).extend([fault] * times)

    # --- implement the store contract ------------------------------------------------------

    async def now_ns(self) -> int | None:
        """Return the time of the store's clock."""
        await self.enter("now", "")
        return await self.inner.now_ns()

    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        """Return an object, damaged if a fault was requested."""
        fault = await self.enter("get", key)
        fetched = await self.inner.get(key, max_bytes)
        return fetched._replace(data=_damaged(fetched.data, fault))

    async def get_range(self, key: ObjectKey, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)`` of an object, damaged if a fault was requested."""
        fault = await self.enter("get_range", key)
        return _damaged(bytes(await self.inner.get_range(key, start, stop)), fault)

    async def put(self, key: ObjectKey, data: bytes | memoryview) -> None:
        """Store an object unconditionally."""
        fault = await self.enter("put", key)
        await self.inner.put(key, data)
        _lose(fault, key)

    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Store an object if no object has the key."""
        fault = await self.enter("create", key)
        if self.ignores_conditions:
            etag = await self._put_regardless(key, data)
        else:
            etag = await self.inner.create(key, data)
        _lose(fault, key)
        return etag

    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        """Store an object if the key's current object has the version *etag*."""
        fault = await self.enter("replace", key)
        if self.ignores_conditions:
            new_etag = await self._put_regardless(key, data)
        else:
            new_etag = await self.inner.replace(key, data, etag)
        _lose(fault, key)
        return new_etag

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete objects, or raise the error of a requested fault."""
        key = keys[0] if keys else ""
        fault = await self.enter("delete", key)
        await self.inner.delete(keys)
        _lose(fault, key)

    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield the objects by ascending key; a lost reply ends the listing after one object."""
        fault = await self.enter("list", prefix)
        async with aclosing(self.inner.list(prefix, after=after)) as found:
            async for info in found:
                yield info
                _lose(fault, prefix)

    async def enter(self, method: str, key: str) -> Fault | None:
        """Record a call, wait at its gate, and return the fault to apply.

        Every method of the contract calls this first, so a subclass may override it.

        Raises:
            StoreError: the requested fault is a failure of the call.
        """
        self.calls.append(Call(method, key))
        gate = self._gates.get(method) or self._gates.get(ANY)
        if gate is not None:
            await gate.pass_through()
        if self.down is not None:
            raise self.down
        orders = self._faults.get(method) or self._faults.get(ANY)
        fault = orders.popleft() if orders else None
        if fault is not None and fault.kind is FaultKind.FAIL:
            raise fault.error or TransientStoreError(key, "injected fault: the request fails")
        return fault

    async def _put_regardless(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        await self.inner.put(key, data)
        return (await self.inner.get(key, len(data))).etag


def _lose(fault: Fault | None, key: str) -> None:
    if fault is not None and fault.kind is FaultKind.LOSE_REPLY:
        raise TransientStoreError(key, "injected fault: the reply is lost")


def _damaged(data: bytes, fault: Fault | None) -> bytes:
    if fault is None:
        return data
    middle = len(data) // 2
    if fault.kind is FaultKind.SHORTEN:
        return data[:middle]
    if fault.kind is FaultKind.CORRUPT and data:
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    return data
