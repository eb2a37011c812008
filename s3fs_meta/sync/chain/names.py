"""The txgs in object keys, and the check that the chain can have reached them.

Owns: the rule that a key beyond the end of the chain is foreign, which means that it does not belong
to this filesystem; the listing of keys.
Does not know: chain positions, rows.
Keeps: the name of an object proves nothing, because any user of the bucket can create objects. Txgs
beyond a gap that is too long are accepted only if one object beyond the gap verifies with the keys
of this filesystem. Otherwise, the objects beyond the gap are ignored. They are never changed.
Design: docs/design/durability.md, "The chain".
"""

from collections.abc import Iterable, Iterator
from contextlib import aclosing
from typing import Final

from s3fs_meta.background_task import in_thread
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import envelope
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import level as level_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, ObjectMissingError
from s3fs_meta.limits import TXG_GAP_MAX, TXG_GAPS_MAX, TXG_LEAP_MAX, TXG_PROOFS_MAX
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore

# A changelog at most this far after the previous one is accepted without a request. A few changelogs
# may be lost before a damaged one, which proves nothing, but must not be ignored.
CHANGELOG_STEP_MAX: Final = 9

Name = tuple[Txg, ObjectKey]

_PREFIXES: Final = (
    changelog_codec.PREFIX,
    changelog_codec.PART_PREFIX,
    level_codec.PREFIX,
    image_codec.PREFIX,
)


def txg_of(key: ObjectKey) -> Txg:
    """Return the txg in the name of an object, or 0 if the name has no txg."""
    level = level_codec.parse_key(key)
    if level is not None:
        return level[1]
    image = image_codec.parse_manifest_key(key) or image_codec.parse_piece_key(key)
    if image is not None:
        return image.txg
    return changelog_codec.parse_key(key) or changelog_codec.parse_part_key(key) or Txg(0)


async def last_name(store: ObjectStore, keyring: Keyring, known: Txg) -> Txg:
    """List all metadata objects; return the latest txg in their keys that ``reached`` accepts."""
    found: list[Name] = []
    for prefix in _PREFIXES:
        async with aclosing(store.list(prefix)) as listing:
            async for info in listing:
                txg = txg_of(info.key)
                if txg > known:
                    found.append((txg, info.key))
    return await reached(store, keyring, known, found)


async def reached(
    store: ObjectStore,
    keyring: Keyring,
    known: Txg,
    names: Iterable[Name],
    step_max: int = TXG_GAP_MAX,
) -> Txg:
    """Return the last txg in the keys of objects that can belong to the chain.

    No request is sent if no gap between the txgs is too long.

    Args:
        store: the bucket with the objects.
        keyring: the keys of the filesystem.
        known: a txg that the chain has reached.
        names: the keys of objects, each with its txg.
        step_max: the maximum difference to the previous txg that is accepted without a request.

    Raises:
        StoreError: the store cannot return an object beyond a gap.
    """
    last, gaps = known, 0
    within = (name for name in names if known < name[0] <= known + TXG_LEAP_MAX)
    for run in _runs(sorted(within), step_max):
        if run[0][0] - last > step_max and not await _is_proven(store, keyring, run):
            gaps += 1
            if gaps == TXG_GAPS_MAX:
                break
            continue
        last = run[-1][0]
    return last


def _runs(names: list[Name], step_max: int) -> Iterator[list[Name]]:
    """Yield runs of names whose txgs differ by at most *step_max*, in ascending order."""
    run: list[Name] = []
    for name in names:
        if run and name[0] - run[-1][0] > step_max:
            yield run
            run = []
        run.append(name)
    if run:
        yield run


async def _is_proven(store: ObjectStore, keyring: Keyring, run: list[Name]) -> bool:
    """Return whether any of the last or first few objects of a run is authentic."""
    tries = list(dict.fromkeys([*reversed(run[-TXG_PROOFS_MAX:]), *run[:TXG_PROOFS_MAX]]))
    for _txg, key in tries:
        try:
            await require_authentic(store, keyring, key)
        except (FormatError, ObjectMissingError):
            continue
        return True
    return False


async def require_authentic(store: ObjectStore, keyring: Keyring, key: ObjectKey) -> None:
    """Raise FormatError unless this filesystem wrote an object under its present key.

    Raises:
        FormatError: the object is damaged, of an unknown version, or was not written by this
            filesystem.
        ObjectMissingError: the object does not exist.
    """
    data = (await store.get(key, envelope.ENCODED_BYTES_MAX)).data
    await in_thread(envelope.require_authentic, key, data, keyring)
