"""The daemon's handlers of control requests about the cache and its limits.

Owns: the list of settings that can be changed while mounted, and converting messages to calls.
Does not know: clients (``cache_requests``), eviction and downloads of blocks.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import trio

from s3fs_meta.control.protocol import Handler, Message, Report
from s3fs_meta.errors import UsageError
from s3fs_meta.fs.trees import inode_paths, warm
from s3fs_meta.fs.trees.pins import Pins
from s3fs_meta.limits import CONTROL_MESSAGE_BYTES_MAX, PINS_MAX, TREE_PAUSE_S
from s3fs_meta.model import Ino
from s3fs_meta.mount.limits import MISSING_PATHS_MAX
from s3fs_meta.mount.requests import cache_requests
from s3fs_meta.objects.throttle import Throttle
from s3fs_meta.options.option_syntax import nearest, size_text
from s3fs_meta.options.option_table import BY_WORD
from s3fs_meta.options.settings import MountOptions
from s3fs_meta.sync.session import Session

_CACHESIZE: Final = "cachesize"
_Item = TypeVar("_Item")


class CacheHandlers:
    """The handlers of requests to one mount about its cache."""

    def __init__(self, options: MountOptions, session: Session) -> None:
        self._session = session
        self._cache = session.cache
        self._db = session.db
        recorder = session.volume.recorder
        self._pins = Pins(
            session.db,
            session.cache,
            session.volume.state_dir.path,
            version=lambda: (session.link.txg, recorder.last_seq),
        )
        self._throttles: Mapping[str, Throttle] = {
            "upload_limit": session.throttles.upload,
            "download_limit": session.throttles.download,
        }
        self._mounted_with = {
            _CACHESIZE: size_text(options.cache_bytes),
            "upload_limit": str(options.upload_limit),
            "download_limit": str(options.download_limit),
        }

    def handlers(self) -> dict[str, Handler]:
        """Return the handler of each control command about the cache."""
        return {
            cache_requests.SET: self._on_set,
            cache_requests.DROP: self._on_drop,
            cache_requests.WARM: self._on_warm,
            cache_requests.PINS: self._on_pins,
            cache_requests.UNPIN: self._on_unpin,
        }

    # --- change settings -----------------------------------------------------------------------

    async def _on_set(self, arguments: Message, _report: Report) -> Message:
        """Check all values, then apply them; return the current settings."""
        given = arguments.get("values")
        if not isinstance(given, dict):
            raise UsageError("the request contains no settings to change")
        values = {word: self._parsed(word, text) for word, text in given.items()}
        if _CACHESIZE in values:
            self._pins.require_cache(values[_CACHESIZE])
        before_bytes = self._cache.index.total_bytes
        for word in values.keys() - {_CACHESIZE}:
            self._throttles[word].set(values[word])
        if _CACHESIZE in values:
            # All values are set before eviction may wait, so that two requests cannot interleave.
            await self._cache.resize(values[_CACHESIZE])
        now_bytes = self._cache.index.total_bytes
        return {
            "settings": self._settings(),
            "evicted_bytes": max(before_bytes - now_bytes, 0),
            "over_bytes": max(now_bytes - self._cache.bytes_max, 0),
        }

    def _parsed(self, word: str, text: object) -> Any:
        """Return the value of a setting.

        Raises:
            UsageError: the setting cannot be changed while mounted, or the value is invalid.
        """
        if word not in self._mounted_with or not isinstance(text, str):
            settable = list(self._mounted_with)
            raise UsageError(
                f"option {word!r} cannot be set while mounted; these can: {', '.join(settable)}"
                f"{nearest(word, settable)}"
            )
        return BY_WORD[word].parse(word, text)

    def _settings(self) -> list[dict[str, Any]]:
        """Return each setting with its current value and its value at the time of the mount."""
        present: dict[str, dict[str, Any]] = {
            _CACHESIZE: {
                "value": size_text(self._cache.bytes_max),
                "bytes": self._cache.bytes_max,
            }
        }
        for word, throttle in self._throttles.items():
            rate = throttle.bytes_per_s
            present[word] = {"value": str(throttle.limit), "bytes_per_s": rate}
        return [
            {"name": word, "mounted_with": self._mounted_with[word], **facts}
            for word, facts in present.items()
        ]

    # --- load and evict content ----------------------------------------------------------------

    async def _on_drop(self, arguments: Message, _report: Report) -> Message:
        """Sync block locations, so that uploaded blocks become clean; then drop clean blocks."""
        if self._session.status.writable:
            await self._session.durability.sync_all()
        wanted = self._cache.index.blocks()
        if arguments.get("inodes") is not None:
            found = await warm.cached_of(self._db, self._cache, _inodes(arguments))
            wanted = [block for block in wanted if block in found]
        pinned = arguments.get("pinned") is True
        dropped = await self._cache.evictor.drop(wanted, pinned=pinned)
        return {
            "dropped": {"blocks": dropped.blocks, "bytes": dropped.bytes},
            "kept": dict(dropped.kept),
        }

    async def _on_warm(self, arguments: Message, report: Report) -> Message:
        """Download the content of trees, and pin the trees on request."""
        roots, is_pin = _inodes(arguments), arguments.get("pin") is True
        content = await warm.content_of(self._db, self._cache, roots)
        warm.require_room(content, self._cache)
        with self._pins.downloads_paused():
            if is_pin:
                await self._pins.add(roots)
            done = await warm.download(self._db, self._cache, content, _throttled(report))
        missing_bytes = done.total_bytes - done.cached_bytes
        files, paths = 0, []
        if missing_bytes:
            left = await warm.incomplete(self._db, self._cache, roots, MISSING_PATHS_MAX)
            files, paths = left.files, await inode_paths.texts_of(self._db, left.inos)
        error = done.error
        return {
            "total_bytes": done.total_bytes,
            "cached_bytes": done.cached_bytes,
            "fetched_bytes": done.fetched_bytes,
            "missing_bytes": missing_bytes,
            "missing_files": files,
            "paths": _fitting(paths),
            "error": error and {"kind": type(error).__name__, "message": error.message},
            "pinned": is_pin,
        }

    # --- pin and unpin trees -------------------------------------------------------------------

    async def load(self) -> None:
        """Read the pins on this host. Call this before the mount serves requests."""
        await self._pins.load()

    async def run(self) -> None:
        """Keep pinned trees in the cache until cancelled."""
        await self._pins.run()

    async def _on_pins(self, _arguments: Message, _report: Report) -> Message:
        found = await self._pins.listing()
        shown = _fitting([one._asdict() for one in found])
        return {
            "pins": shown,
            "left_out": len(found) - len(shown),
            "pinned_bytes": self._cache.index.pinned_bytes,
            "pinned_bytes_max": max(self._cache.pinned.bytes_max, 0),
            "over_bytes": self._pins.over_bytes,
            "last_error": self._pins.last_error,
        }

    async def _on_unpin(self, arguments: Message, _report: Report) -> Message:
        await self._pins.remove(_inodes(arguments))
        return {}


def _inodes(arguments: Message) -> list[Ino]:
    """Return the inode numbers in a message.

    Raises:
        UsageError: the list is empty or too long, or contains a value that is not a number.
    """
    found = arguments.get("inodes")
    if not isinstance(found, list) or not 0 < len(found) <= PINS_MAX:
        raise UsageError(
            f"the command accepts at most {PINS_MAX} paths; use a directory that contains them"
        )
    if not all(type(ino) is int for ino in found):
        raise UsageError("an inode number must be an integer")
    return [Ino(ino) for ino in found]


def _fitting(items: Sequence[_Item]) -> list[_Item]:
    """Return as many of the first items as fit into half of a control message."""
    left = CONTROL_MESSAGE_BYTES_MAX // 2
    shown = []
    for item in items:
        left -= len(json.dumps(item)) + 1
        if left < 0:
            break
        shown.append(item)
    return shown


def _throttled(report: Report) -> Callable[[int, int], None]:
    """Return a function that reports progress to a client, at most a few times per second."""
    next_s = -math.inf

    def show(done: int, total: int) -> None:
        nonlocal next_s
        now_s = trio.current_time()
        if total and (now_s >= next_s or done == total):
            next_s = now_s + TREE_PAUSE_S
            report({"what": "downloading", "done": done, "total": total})

    return show
