"""The statistics of mounts in the text formats of Prometheus and OpenMetrics.

Owns: names, units and labels of the metrics. Does not know: their readers (``metrics_server``, the
command status). prometheus_client is imported late, because most commands do not need it.
Source: https://prometheus.io/docs/practices/naming, https://openmetrics.io.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from typing_extensions import override

from s3fs_meta.mount.requests.control_api import DETACHED, ENDING
from s3fs_meta.mount.statistics.latency import histograms
from s3fs_meta.mount_state import MountState

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX: Final = "s3fs_meta_"
PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

STATES: Final = (*(one.value for one in MountState), ENDING, DETACHED)

_SECOND_NS: Final = 1e9
_UNITS: Final = ("bytes", "seconds")
_PARTS: Final = ("upload", "chain", "image", "compaction", "reclaim", "follow", "kernel")
_WORK: Final = ("copying", "locking", "removing")


class MountFigures(NamedTuple):
    """The statistics of one mount; None if its daemon does not answer."""

    mountpoint: str
    figures: Mapping[str, Any] | None


class _Row(NamedTuple):
    """The metric of one statistic; a statistic without a value has no sample."""

    name: str  # name of the metric; a counter if it ends with "_total", else a gauge
    path: str  # path of the statistic as docs/reference/metrics.md lists it
    help: str
    convert: Callable[[Any], float | None] = float


def _flag(value: object) -> float:
    return float(bool(value))


def _from_ns(value_ns: int) -> float | None:
    """Return nanoseconds as seconds; None for 0, which means an unset time."""
    return value_ns / _SECOND_NS if value_ns else None


_ROWS: Final = (
    _Row("read_only", "read_only", "1 if the mount accepts no changes.", _flag),
    _Row("offline", "offline", "1 if the mount runs without the bucket.", _flag),
    _Row("epoch", "epoch", "Epoch: a number that each acquisition of the lease increments."),
    _Row("open_txg", "txg", "Number of the open transaction group."),
    _Row("inodes", "inodes", "Number of inodes: files of all kinds."),
    _Row("dentries", "dentries", "Number of names in directories."),
    _Row("file_bytes", "file_bytes", "Sum of the sizes of all files, holes included."),
    _Row("block_bytes", "block_bytes", "Size of the distinct content, without holes."),
    _Row("stored_bytes", "stored_bytes", "Size of the packs in the bucket."),
    _Row("capacity_bytes", "capacity_bytes", "Size limit of the filesystem; 0 if unlimited."),
    _Row("cache_bytes", "cache.bytes", "Size of the cached blocks."),
    _Row("cache_limit_bytes", "cache.bytes_max", "Maximum size of the cached blocks."),
    _Row("cache_blocks", "cache.blocks", "Number of cached blocks."),
    _Row("cache_dirty_bytes", "cache.dirty_bytes", "Size of content not yet sealed for upload."),
    _Row("cache_pinned_bytes", "cache.pinned_bytes", "Size of the pinned content."),
    _Row("disk_free_bytes", "disk.free_bytes", "Size of content that fits on the local disk."),
    _Row("cache_hits_total", "cache.hits", "Number of reads of cached blocks."),
    _Row("cache_misses_total", "cache.misses", "Number of reads of uncached blocks."),
    _Row("upload_pending_blocks", "upload.pending_blocks", "Number of blocks left to upload."),
    _Row("upload_pending_bytes", "upload.pending_bytes", "Size of content left to upload."),
    _Row("upload_pending_packs", "upload.pending_packs", "Number of packs left to upload."),
    _Row("upload_left_seconds", "upload.left_s", "Estimated time until all content is uploaded."),
    _Row("upload_lost_blocks", "upload.lost_blocks", "Number of blocks whose only copy is lost."),
    _Row("upload_packs_total", "upload.packs_uploaded", "Number of uploaded packs."),
    _Row("upload_sent_bytes_total", "upload.sent_bytes", "Size of the uploaded packs."),
    _Row("bucket_txg", "chain.txg", "Last transaction group in the bucket."),
    _Row("bucket_txg_timestamp_seconds", "chain.created_ns", "Time of the last cut.", _from_ns),
    _Row(
        "unshipped_age_seconds",
        "chain.unshipped_age_s",
        "Age of the oldest change that is not in the bucket.",
    ),
    _Row("unshipped_bytes", "chain.unshipped_bytes", "Size of change records not in the bucket."),
    _Row("bucket_outage_seconds", "outage.age_s", "Time since the bucket began to fail."),
    _Row(
        "bucket_silence_seconds",
        "outage.silent_s",
        "Time for which requests have been waiting without any response from the bucket.",
    ),
    _Row("kernel_open_files", "kernel.open_files", "Number of open files."),
    _Row("kernel_writing_files", "kernel.open_for_writing", "Number of files open for writing."),
    _Row("kernel_age_seconds", "kernel.age_s", "Age of the oldest bytes that only the kernel has."),
    _Row(
        "kernel_collected_age_seconds",
        "kernel.asked_age_s",
        "Time since the last collection of dirty bytes from the kernel.",
    ),
    _Row("image_txg", "image.txg", "Transaction group of the last image."),
    _Row("image_timestamp_seconds", "image.last_ns", "Time of the last image.", _from_ns),
    _Row("follow_behind_seconds", "follow.behind_s", "Maximum lag of a follower."),
    _Row("read_bytes_total", "latency.read_bytes", "Bytes that the kernel has read."),
    _Row("written_bytes_total", "latency.written_bytes", "Bytes that the kernel has written."),
    _Row("requests_waiting", "latency.waiting", "Number of unanswered requests from the kernel."),
    _Row("oldest_request_age_seconds", "latency.oldest_s", "Age of the oldest unanswered request."),
)


def text(readings: Sequence[MountFigures], *, open_metrics: bool) -> bytes:
    """Return the metrics of mounts as text; takes a few ms, so call it in a thread.

    Args:
        readings: the statistics of the mounts.
        open_metrics: True for the format OPEN_METRICS, False for PLAIN.
    """
    from prometheus_client import exposition, registry
    from prometheus_client.openmetrics import exposition as open_exposition

    class Collected(registry.Collector):
        @override
        def collect(self) -> Iterable["Metric"]:
            return families(readings)

    made = registry.CollectorRegistry()
    made.register(Collected())
    generate: Any = open_exposition.generate_latest if open_metrics else exposition.generate_latest
    page: bytes = generate(made)
    return page


def families(readings: Sequence[MountFigures]) -> Iterator["Metric"]:
    """Yield the metrics of mounts; each sample has the label ``mountpoint``."""
    readings = [one._replace(mountpoint=_shown(one.mountpoint)) for one in readings]
    yield _family("up", "1 if the daemon answers.", _up(readings))
    alive = [(one.mountpoint, one.figures) for one in readings if one.figures is not None]
    if not alive:
        return
    yield _info(alive)
    yield _family("state", "1 for the current state.", _labelled(alive, "state", _states))
    yield _family("error", "1 if the last attempt failed.", _labelled(alive, "part", _errors))
    for row in _ROWS:
        yield _family(row.name, row.help, _of_row(alive, row))
    left = _labelled(alive, "work", _names_left)
    yield _family("tree_names_left", "Minimum number of names left for tree operations.", left)
    yield from _store(alive)
    yield from _billed(alive)
    yield _durations(alive)


def _shown(text: str) -> str:
    r"""Return a path as valid Unicode for a label; other bytes are escaped as ``\xff``."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


_Alive = Sequence[tuple[str, Mapping[str, Any]]]
_Sample = tuple[dict[str, str], float]


def _family(name: str, documentation: str, samples: Iterable[_Sample]) -> "Metric":
    """Return a metric family: a counter if *name* ends with "_total", else a gauge."""
    from prometheus_client.core import Metric

    base = name.removesuffix("_total")
    unit = next((one for one in _UNITS if base.endswith(f"_{one}")), "")
    kind = "gauge" if base == name else "counter"
    made = Metric(PREFIX + base, documentation, kind, unit)
    for labels, value in samples:
        made.add_sample(PREFIX + name, labels, value)
    return made


def _info(alive: _Alive) -> "Metric":
    from prometheus_client.core import Metric

    made = Metric(f"{PREFIX}mount", "The mounted filesystem; the value is always 1.", "info")
    for mountpoint, figures in alive:
        labels = {"mountpoint": mountpoint} | {
            name: _shown(str(figures[name])) for name in ("url", "uuid", "label")
        }
        made.add_sample(f"{PREFIX}mount_info", labels, 1)
    return made


def _up(readings: Sequence[MountFigures]) -> Iterator[_Sample]:
    for one in readings:
        yield {"mountpoint": one.mountpoint}, _flag(one.figures is not None)


def _of_row(alive: _Alive, row: _Row) -> Iterator[_Sample]:
    for mountpoint, figures in alive:
        value = _at(figures, row.path)
        converted = None if value is None else row.convert(value)
        if converted is not None:
            yield {"mountpoint": mountpoint}, converted


def _at(figures: Mapping[str, Any], path: str) -> Any:
    """Return a value by its path, or None if the mount does not report it."""
    found: Any = figures
    for key in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def _labelled(
    alive: _Alive, label: str, values: Callable[[Mapping[str, Any]], Mapping[str, float]]
) -> Iterator[_Sample]:
    for mountpoint, figures in alive:
        for name, value in values(figures).items():
            yield {"mountpoint": mountpoint, label: name}, value


def _states(figures: Mapping[str, Any]) -> Mapping[str, float]:
    return {name: _flag(name == figures["state"]) for name in STATES}


def _errors(figures: Mapping[str, Any]) -> Mapping[str, float]:
    return {part: _flag(_at(figures, f"{part}.last_error")) for part in _PARTS}


def _names_left(figures: Mapping[str, Any]) -> Mapping[str, float]:
    return {one: float((_at(figures, f"trees.{one}") or {}).get("left", 0)) for one in _WORK}


def _store(alive: _Alive) -> Iterator["Metric"]:
    for name, key, documentation in (
        ("store_requests_total", "requests", "Number of requests to the store."),
        ("store_errors_total", "errors", "Number of requests that failed after all attempts."),
        ("store_sent_bytes_total", "sent_bytes", "Bytes sent by successful requests."),
        ("store_received_bytes_total", "received_bytes", "Bytes received from the store."),
    ):

        def values(figures: Mapping[str, Any], key: str = key) -> Mapping[str, float]:
            return {method: float(one[key]) for method, one in figures["store"].items()}

        yield _family(name, documentation, _labelled(alive, "method", values))


def _billed(alive: _Alive) -> Iterator["Metric"]:
    for key, documentation in (
        ("requests", "Number of requests that the store bills."),
        ("sent_bytes", "Bytes sent by billed requests."),
        ("received_bytes", "Bytes that the store sent in reply."),
    ):
        yield _family(f"billed_{key}_total", documentation, _by_cause(alive, key))


def _by_cause(alive: _Alive, key: str) -> Iterator[_Sample]:
    for mountpoint, figures in alive:
        for cause, classes in figures.get("billed", {}).items():
            for kind, counts in classes.items():
                yield {"mountpoint": mountpoint, "cause": cause, "class": kind}, float(counts[key])


def _durations(alive: _Alive) -> "Metric":
    from prometheus_client.core import HistogramMetricFamily

    made = HistogramMetricFamily(
        f"{PREFIX}request_duration_seconds",
        "Times of the kernel's requests, from their arrival to the reply.",
        labels=("mountpoint", "operation"),
        unit="seconds",
    )
    for mountpoint, figures in alive:
        for name, one in histograms(figures).items():
            bounds = [*map(str, one.bounds_s), "+Inf"]
            buckets = list(zip(bounds, one.cumulated(), strict=True))
            made.add_metric((mountpoint, name), buckets, one.total_s)
    return made
