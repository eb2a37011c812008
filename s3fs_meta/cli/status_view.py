"""The statistics of a mount as text: a screen with the main values, or a table of all values."""

import math
from collections.abc import Mapping
from typing import Any, Final

from s3fs_meta.console import output
from s3fs_meta.counted import counted
from s3fs_meta.mount.existing import mount_holders
from s3fs_meta.mount.existing.mount_holders import Holder
from s3fs_meta.mount.requests.upload_watch import rate_of
from s3fs_meta.mount.statistics import health
from s3fs_meta.mount.statistics.latency import histograms

# Labels for statistics whose own names would be unclear next to a value, as in "file 3 MiB".
_SIZES: Final[Mapping[str, str]] = {
    "file bytes": "size of all files",
    "block bytes": "distinct data in them",
    "stored bytes": "stored in packs",
    "cache bytes": "cache used",
    "cache bytes max": "cache limit",
}
_PARTS_WITH_ERRORS: Final = ("upload", "chain", "image", "compaction", "reclaim", "follow")


def screen(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return the main statistics: state of the mount, changes at risk, sizes and bucket."""
    chain, image = figures["chain"], figures["image"]
    rows = {
        "state": state_of(figures),
        "filesystem": " ".join(filter(None, (figures["label"], figures["url"]))),
        "mounted on": f"{figures['mountpoint']} (process {figures['pid']})",
        "files": f"{counted(figures['inodes'], 'inode')}, {output.human_bytes(figures['file_bytes'])}",
        "stored": _stored(figures),
        "only on this host": at_risk(figures),
        "upload": shown_upload(figures["upload"]),
        "cache": _cache(figures["cache"]),
        "bucket": f"txg {chain['txg']} of {output.human_time(chain['created_ns'])}",
    }
    if image["last_ns"]:
        rows["last image"] = f"txg {image['txg']} of {output.human_time(image['last_ns'])}"
    if figures["follow"]["behind_s"] is not None:
        rows["behind the writer"] = f"{figures['follow']['behind_s']:.1f} s or less"
    rows["requests today"] = _requests(figures)
    if figures["holders"]:
        rows["used by"] = mount_holders.described([Holder(**one) for one in figures["holders"]], 0)
    return rows | errors_of(figures)


def errors_of(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return the last error in each part of a mount, except errors that ``state_of`` shows."""
    outage = figures.get("outage", {}).get("why")
    return {
        f"error of {part}": figures[part]["last_error"]
        for part in _PARTS_WITH_ERRORS
        if figures[part]["last_error"] and not (outage and outage in figures[part]["last_error"])
    }


def state_of(figures: Mapping[str, Any]) -> str:
    """Return the state of a mount and its reason as text."""
    parts = [figures["state"]]
    if figures["at"] is not None:
        parts.append(f"as of {figures['at']}")
    if figures["read_only"]:
        parts.append("read-only")
    reasons = (figures["why"], figures["offline"], health.full_disk(figures), health.away(figures))
    parts += filter(None, reasons)
    return ", ".join(parts)


def _stored(figures: Mapping[str, Any]) -> str:
    ratios = [
        f"{name} {figures[key]:.2f}"
        for name, key in (("deduplication", "dedup_ratio"), ("compression", "compression_ratio"))
        if figures[key] is not None
    ]
    return ", ".join((f"{output.human_bytes(figures['stored_bytes'])} in packs", *ratios))


def at_risk(figures: Mapping[str, Any]) -> str:
    """Return a description of the changes that would be lost with this host."""
    found = health.exposure(figures)
    if not found.age_s and not found.content_bytes:
        return "nothing"
    content = output.human_bytes(found.content_bytes)
    return f"changes of the last {found.age_s:.1f} s, {content} to upload"


def shown_upload(upload: Mapping[str, Any]) -> str:
    """Return the size, the speed and the remaining time of the upload as text."""
    pending_bytes = upload["pending_bytes"]
    if not pending_bytes:
        return "nothing to upload"
    parts = [f"{output.human_bytes(pending_bytes)} left"]
    parts += ["waits for the bucket"] if upload["last_error"] else rate_of(upload)
    return ", ".join(parts)


def _cache(cache: Mapping[str, Any]) -> str:
    used, limit = output.human_bytes(cache["bytes"]), output.human_bytes(cache["bytes_max"])
    hits = "" if cache["hit_ratio"] is None else f", {cache['hit_ratio']:.0%} of reads found there"
    pinned = (
        f", {output.human_bytes(cache['pinned_bytes'])} pinned" if cache["pinned_bytes"] else ""
    )
    return f"{used} of {limit}{pinned}{hits}"


def _requests(figures: Mapping[str, Any]) -> str:
    """Return the billed requests of the present day (UTC), and failures since the mount."""
    today = figures["today"]
    requests = sum(count for name, count in today.items() if name.endswith("_requests"))
    sent, received = (output.human_bytes(today[f"{word}_bytes"]) for word in ("sent", "received"))
    errors = sum(method["errors"] for method in figures["store"].values())
    failed = f"; {errors} failed since the mount" if errors else ""
    return f"{requests} to the bucket, {sent} sent, {received} received{failed}"


def table_rows(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return the statistics of a mount as a table of names and values."""
    rows: dict[str, str] = {}
    for name, value in _flat(figures):
        last = name.rsplit(" ", 1)[-1]
        if value is None or value == "" or name.startswith(("store ", "latency ")):
            continue
        if name == "capacity bytes" and value == 0:
            rows["capacity"] = "unlimited"
        elif name in _SIZES:
            rows[_SIZES[name]] = output.human_bytes(value)
        elif last == "bytes" or " bytes" in f" {name}":
            rows[name.removesuffix(" bytes")] = output.human_bytes(value)
        elif last == "ns":
            rows[name.removesuffix(" ns")] = output.human_time(value) if value else "never"
        elif isinstance(value, list):
            if value:
                rows[name] = mount_holders.described([Holder(**one) for one in value], 0)
        elif isinstance(value, bool):
            rows[name] = "yes" if value else "no"
        else:
            rows[name] = str(value)
    return rows | _latencies(figures)


def _latencies(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return the latencies of requests since the mount, by operation."""
    return {
        f"latency of {name}": f"p50 {shown_latency(one.quantile_s(0.5))}, "
        f"p99 {shown_latency(one.quantile_s(0.99))}, {counted(one.count, 'request')}"
        for name, one in histograms(figures).items()
    }


def shown_latency(time_s: float | None) -> str:
    """Return a quantile of latencies as text."""
    if time_s is None:
        return ""
    return "over 100 s" if math.isinf(time_s) else output.human_duration(time_s)


def _flat(figures: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in figures.items():
        name = before + key.replace("_", " ")
        if isinstance(value, Mapping):
            found += _flat(value, f"{name} ")
        else:
            found.append((name, value))
    return found
