"""The page about the mount, with plots of its statistics over the last hour.

Owns: the choice of statistics, their units, the plots.
Does not know: HTML, how statistics are collected.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from s3fs_meta.browse.page_server import page
from s3fs_meta.browse.pages.wanted import WrongAddressError
from s3fs_meta.browse.sources.mount_watch import MountWatch, Sample
from s3fs_meta.browse.templates import Render
from s3fs_meta.console.output import human_bytes, human_duration, human_number
from s3fs_meta.mount.http_server import Reply

WIDTH: Final = 300.0
HEIGHT: Final = 60.0
_MARGIN: Final = 2.0  # margin above and below a plot, so that thick lines are not clipped


class Series(NamedTuple):
    """A statistic of the mount that the page plots over time."""

    name: str
    title: str
    shown: Callable[[float], str]


class Line(NamedTuple):
    """The plot of one statistic over time: its texts, and the points of its line."""

    title: str
    now: str
    most: str
    parts: list[str]  # parts of the line between gaps, as points of an SVG polyline


def _bytes_per_s(value: float) -> str:
    return f"{human_bytes(value)}/s"


def _per_s(value: float) -> str:
    return f"{human_number(value)}/s"


SERIES: Final = (
    Series("age", "Age of the oldest change not in the bucket", human_duration),
    Series("pending", "Content to upload", human_bytes),
    Series("sent", "Upload", _bytes_per_s),
    Series("cache", "Cache", human_bytes),
    Series("hits", "Reads served by the cache", lambda value: f"{value:.0%}"),
    Series("requests", "Requests of programs", _per_s),
    Series("median", "Median request time", human_duration),
    Series("slowest", "99th percentile request time", human_duration),
    Series("store", "Requests to the bucket", _per_s),
    Series("cost", "Cost per day at this rate", human_number),
)


async def mount(watch: MountWatch | None, render: Render) -> Reply:
    """Return the page about the mount.

    Raises:
        WrongAddressError: the filesystem was not mounted on this host when the server started.
    """
    if watch is None:
        raise WrongAddressError(
            "the filesystem was not mounted on this host when this server was started;"
            " restart s3fs-meta browse"
        )
    if not watch.samples:
        await watch.read()
    samples = list(watch.samples)
    text = render(
        "mount.html",
        last=samples[-1],
        first=samples[0],
        lines=[line_of(series, samples) for series in SERIES],
        prices=watch.prices,
    )
    return page(text)


def line_of(series: Series, samples: Sequence[Sample]) -> Line:
    """Return a statistic as a line, with gaps at samples without a value."""
    values = [one.values.get(series.name) for one in samples]
    known = [one for one in values if one is not None]
    most = max(known, default=0.0)
    parts: list[str] = []
    points: list[str] = []
    for sample, value in zip(samples, values, strict=True):
        if value is None:
            parts += [" ".join(points)] if points else []
            points = []
            continue
        points.append(f"{_x(sample, samples):.1f},{_y(value, most):.1f}")
    parts += [" ".join(points)] if points else []
    last = values[-1] if values else None
    return Line(
        series.title,
        "unknown" if last is None else series.shown(last),
        series.shown(most) if known else "unknown",
        parts,
    )


def _x(sample: Sample, samples: Sequence[Sample]) -> float:
    length_ns = samples[-1].time_ns - samples[0].time_ns
    return WIDTH * (sample.time_ns - samples[0].time_ns) / length_ns if length_ns > 0 else WIDTH


def _y(value: float, most: float) -> float:
    return HEIGHT - _MARGIN - (HEIGHT - 2 * _MARGIN) * (value / most if most else 0.0)
