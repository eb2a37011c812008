"""Handlers of control requests about the cache and its limits, in the daemon.

Owns: which settings can be changed while mounted, and converting messages to calls.
Does not know: clients (``cache_requests``), how blocks are evicted.
"""

from collections.abc import Mapping
from typing import Any, Final

from s3fs_meta.control.protocol import Handler, Message, Report
from s3fs_meta.errors import UsageError
from s3fs_meta.mount import cache_requests
from s3fs_meta.objects.throttle import Throttle
from s3fs_meta.option_syntax import nearest, size_text
from s3fs_meta.option_table import BY_WORD
from s3fs_meta.settings import MountOptions
from s3fs_meta.sync.session import Session

_CACHESIZE: Final = "cachesize"


class CacheHandlers:
    """The handlers of one mount."""

    def __init__(self, options: MountOptions, session: Session) -> None:
        self._session = session
        self._cache = session.cache
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
        """Return the handler of each command."""
        return {cache_requests.SET: self._on_set, cache_requests.DROP: self._on_drop}

    async def _on_set(self, arguments: Message, _report: Report) -> Message:
        """Check all values, then apply them; return the present settings."""
        given = arguments.get("values")
        if not isinstance(given, dict):
            raise UsageError("a request to set needs values")
        values = {word: self._parsed(word, text) for word, text in given.items()}
        before_bytes = self._cache.index.total_bytes
        for word, value in values.items():
            if word == _CACHESIZE:
                await self._cache.resize(value)
            else:
                self._throttles[word].set(value)
        now_bytes = self._cache.index.total_bytes
        return {
            "settings": self._settings(),
            "evicted_bytes": max(before_bytes - now_bytes, 0),
            "over_bytes": max(now_bytes - self._cache.bytes_max, 0),
        }

    def _parsed(self, word: str, text: object) -> Any:
        """Return the value of a setting.

        Raises:
            UsageError: the setting cannot be changed while mounted, or the value is wrong.
        """
        if word not in self._mounted_with or not isinstance(text, str):
            settable = list(self._mounted_with)
            raise UsageError(
                f"{word!r} cannot be set while mounted, only {', '.join(settable)}"
                f"{nearest(word, settable)}"
            )
        return BY_WORD[word].parse(word, text)

    def _settings(self) -> list[dict[str, Any]]:
        """Return the present settings, those of the options at the mount, and their values now."""
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

    async def _on_drop(self, _arguments: Message, _report: Report) -> Message:
        """Drop clean blocks; blocks whose location is not synced yet become clean before that."""
        if self._session.status.writable:
            await self._session.durability.sync_all()
        dropped = await self._cache.evictor.drop(self._cache.index.blocks())
        return {
            "dropped": {"blocks": dropped.blocks, "bytes": dropped.bytes},
            "kept": dict(dropped.kept),
        }
