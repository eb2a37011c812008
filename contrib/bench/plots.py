"""Plots: what to show of each benchmark, and how it becomes SVG inside the page.

A benchmark without an entry in PLOTS has tables only.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from contrib.bench.page_tables import number

WIDTH_IN: Final = 8.0
BAR_IN: Final = 0.2
MARGIN_IN: Final = 1.1
LINES_IN: Final = 3.6
COLOURS: Final = ("#1b6ca8", "#e08e0b", "#3a9d5d", "#b3476b", "#6f5aa8", "#7a7a7a")


class Bars(NamedTuple):
    """Groups of bars, one series after the other; a missing value is left out."""

    title: str
    unit: str
    labels: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    logarithmic: bool = False
    wanted: float | None = None  # a line to compare with


class Lines(NamedTuple):
    """Curves over a size, on logarithmic axes."""

    title: str
    across: str
    unit: str
    series: Mapping[str, Sequence[tuple[float, float]]]


Plot = Bars | Lines
Figures = Mapping[str, Any]


def plots(name: str, figures: Figures) -> list[Plot]:
    """Return what to draw of a benchmark."""
    return PLOTS[name](figures) if name in PLOTS else []


def svg(plot: Plot, salt: str) -> str:
    """Draw; the same figures and *salt* give the same text."""
    settings: Any = {"svg.hashsalt": salt, "svg.fonttype": "none", "font.size": 9}
    settings["font.sans-serif"] = ["DejaVu Sans"]
    with mpl.rc_context(settings):
        figure = Figure(figsize=(WIDTH_IN, _height_in(plot)), layout="constrained")
        axes = figure.subplots()
        if isinstance(plot, Bars):
            _draw_bars(axes, plot)
        else:
            _draw_lines(axes, plot)
        axes.set_title(plot.title, loc="left", fontweight="bold")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue().partition("<svg")[2].join(("<svg", ""))


def _height_in(plot: Plot) -> float:
    if isinstance(plot, Lines):
        return LINES_IN
    return MARGIN_IN + BAR_IN * len(plot.labels) * (len(plot.series) + 0.6)


def _draw_bars(axes: Axes, plot: Bars) -> None:
    thick = 0.8 / len(plot.series)
    for which, (name, values) in enumerate(plot.series.items()):
        there = [(row, value) for row, value in enumerate(values) if value is not None]
        places = [row + (which + 0.5) * thick - 0.4 for row, _ in there]
        lengths = [value for _, value in there]
        bars = axes.barh(places, lengths, thick, label=name, color=COLOURS[which % len(COLOURS)])
        axes.bar_label(bars, fmt=number, padding=2, fontsize=7)
    axes.set_yticks(range(len(plot.labels)), plot.labels)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    if plot.logarithmic:
        axes.set_xscale("log")
    if plot.wanted is not None:
        axes.axvline(plot.wanted, color="#a00000", linestyle="--", linewidth=1, label="wanted")
    axes.set_xlabel(plot.unit)


def _draw_lines(axes: Axes, plot: Lines) -> None:
    for which, (name, points) in enumerate(plot.series.items()):
        across, up = zip(*points, strict=True)
        axes.plot(across, up, marker="o", label=name, color=COLOURS[which % len(COLOURS)])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(plot.across)
    axes.set_ylabel(plot.unit)


# --- what is drawn -----------------------------------------------------------------------------


def median(value: Any) -> float | None:
    """Return the median of a summary, a plain number as it is."""
    found = value["median"] if isinstance(value, Mapping) else value
    return None if found is None else float(found)


def _columns(records: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> Any:
    """Return the series of *names* over all records."""
    return {name: [median(record.get(name)) for record in records.values()] for name in names}


def _metadata(figures: Figures) -> list[Plot]:
    loops = {name: each["operations"] for name, each in figures.items() if "operations" in each}
    labels = list(next(iter(loops.values())))
    ratios = {
        f"against {name}": [operations[label]["ratio"] for label in labels]
        for name, operations in loops.items()
    }
    same = next(iter(loops.values()))
    processor = {
        name: [median(same[label][name]["cpu_us"]) for label in labels]
        for name in ("do-nothing", "s3fs-meta")
    }
    return [
        Bars("Speed against a do-nothing filesystem (1: as fast)", "ratio", labels, ratios),
        Bars("Processor time of the daemon", "µs per operation", labels, processor),
    ]


def _peers(figures: Figures) -> list[Plot]:
    drawn: list[Plot] = []
    for clients, operations in figures.items():
        if "client" not in clients:
            continue
        first = next(iter(operations.values()))
        names = [key for key in first if key.endswith(", us") and "processor" not in key]
        series = _columns(operations, names)
        renamed = {key.removesuffix(", us"): values for key, values in series.items()}
        title = f"Time per file, {clients}"
        drawn.append(Bars(title, "µs", list(operations), renamed, logarithmic=True))
    return drawn


def _sequential(figures: Figures) -> list[Plot]:
    phases = figures["phases"]
    series = {
        name: [median(phase[name]["seconds"]) for phase in phases.values()]
        for name in ("do-nothing", "s3fs-meta")
    }
    return [Bars("Sequential write, fsync and cached read", "s", list(phases), series)]


def _random(figures: Figures) -> list[Plot]:
    phases = figures.get("per second", {})
    series = _columns(phases, ("do-nothing", "s3fs-meta"))
    return [Bars("Random access, 4 KiB", "per second", list(phases), series)] if phases else []


def _space(figures: Figures) -> list[Plot]:
    per_file = figures["bytes_per_file"]
    series = {"bytes per empty file": list(per_file.values())}
    wanted = figures["bytes_per_file_max"]
    return [Bars("Metadata of an empty file", "bytes", list(per_file), series, wanted=wanted)]


def _latencies(title: str, records: Mapping[str, Mapping[str, float]]) -> Bars:
    parts = ("p50_ms", "p99_ms", "p999_ms", "max_ms")
    series = {name: [each.get(part) for part in parts] for name, each in records.items()}
    labels = ("median", "99 %", "99.9 %", "longest")
    return Bars(title, "ms", labels, series, logarithmic=True)


def _stall(figures: Figures) -> list[Plot]:
    records = {name: figures[name] for name in ("imaging", "idle")}
    return [_latencies("Answers to statfs while an image is made", records)]


def _follow(figures: Figures) -> list[Plot]:
    records = {name: figures["answers"][name] for name in ("applying", "idle")}
    return [_latencies("Answers to statfs on a follower that applies a group", records)]


def _restore(figures: Figures) -> list[Plot]:
    seconds = figures["seconds"]
    series = {"to the first ls": [median(each) for each in seconds.values()]}
    return [Bars("Mount on a host that knows nothing", "s", list(seconds), series)]


def _trees(figures: Figures) -> list[Plot]:
    rates = {
        "cp -al": figures["cp_al_entries_per_s"],
        "clone": figures["clone"]["quiet"]["entries_per_s"],
        "rm -rf": figures["rm_rf_entries_per_s"],
        "rm": figures["rm"]["quiet"]["entries_per_s"],
    }
    series = {"entries a second": list(rates.values())}
    return [Bars("Whole trees", "entries per second", list(rates), series)]


def _blocks(figures: Figures) -> list[Plot]:
    sizes = figures["block_sizes"]
    rates = _columns(sizes, ("write_mib_s", "ship_mib_s", "read_mib_s"))
    changes = _columns(sizes, ("change_ms", "cold_read_ms"))
    return [
        Bars("Throughput by block size", "MiB/s", list(sizes), rates),
        Bars("A change and a cold read of 4 KiB", "ms", list(sizes), changes),
    ]


def _compression(figures: Figures) -> list[Plot]:
    methods = figures["methods"]
    rates = _columns(methods, ("compress_mb_s", "decompress_mb_s"))
    return [
        Bars("Content to stored", "ratio", list(methods), _columns(methods, ("ratio",))),
        Bars("Speed of one core", "MB/s", list(methods), rates, logarithmic=True),
    ]


def _s3_small(figures: Figures) -> list[Plot]:
    subjects = figures["subjects"]
    series = _columns(subjects, ("stored_ms_per_file", "read_ms_per_file"))
    title = "A small file to the bucket, and read from it"
    return [Bars(title, "ms", list(subjects), series, logarithmic=True)]


def _s3_read(figures: Figures) -> list[Plot]:
    sequential, scattered = figures["sequential"], figures["random"]
    seconds, milliseconds = _columns(sequential, ("seconds",)), _columns(scattered, ("median_ms",))
    return [
        Bars("A large file read from the bucket in order", "s", list(sequential), seconds),
        Bars("4 KiB of it at a random place", "ms", list(scattered), milliseconds),
    ]


def _journal_modes(figures: Figures) -> list[Plot]:
    phases = ("create", "delete", "find")
    modes = list(figures["create"])
    processor = {
        phase: [median(figures[phase][mode]["processor, us"]) for mode in modes] for phase in phases
    }
    wall = {phase: [median(figures[phase][mode]["wall_us"]) for mode in modes] for phase in phases}
    return [
        Bars("Processor time of the daemon by journal mode/synchronous", "µs", modes, processor),
        Bars("Wall time", "µs per file", modes, wall, logarithmic=True),
    ]


def _copy_trees(figures: Figures) -> list[Plot]:
    cases = figures["seconds"]
    series = _columns(cases, ("copy", "remove", "until nothing is left"))
    return [Bars("A system tree copied and removed", "s", list(cases), series, logarithmic=True)]


def _database_pragmas(figures: Figures) -> list[Plot]:
    mount = figures["database on the mount: one update"]
    own = figures["our own database"]
    both = _columns(mount, ("s3fs-meta, ms", "ext4, ms"))
    synced = _columns(own, ("a name and its fsync, ms",))
    changes = _columns(own, ("a change, us", "a change, processor, us"))
    return [
        Bars("One update: journal, synchronous, page", "ms", list(mount), both, logarithmic=True),
        Bars("Our own database: a name and its fsync", "ms", list(own), synced),
        Bars("Our own database: a change without fsync", "µs", list(own), changes),
    ]


def _sqlite_inserts(figures: Figures) -> list[Plot]:
    cases = figures["milliseconds_per_insert"]
    series = _columns(cases, ("DELETE, ms", "WAL, ms"))
    return [Bars("One insert and its fsync", "ms", list(cases), series, logarithmic=True)]


def _delete_many(figures: Figures) -> list[Plot]:
    rates = figures["published, and here per second"]
    series = {"files a second": [each["files_per_s"] for each in rates.values()]}
    return [Bars("Very many files removed", "per second", list(rates), series, logarithmic=True)]


def _scale(figures: Figures) -> list[Plot]:
    rows = list(figures["per_file"].values())
    steps = [name.removesuffix(" cpu") for name in rows[0] if name.endswith(" cpu")]
    series = {
        step: points
        for step in steps
        if (
            points := [(row["files"], row[f"{step} cpu"]) for row in rows if row[f"{step} cpu"] > 0]
        )
    }
    title = "Processor time per file by the number of files"
    return [Lines(title, "files", "µs per file", series)]


PLOTS: Final[Mapping[str, Callable[[Figures], list[Plot]]]] = {
    "metadata": _metadata,
    "peers": _peers,
    "sequential": _sequential,
    "random": _random,
    "space": _space,
    "stall": _stall,
    "follow": _follow,
    "restore": _restore,
    "trees": _trees,
    "blocks": _blocks,
    "compression": _compression,
    "s3_small": _s3_small,
    "s3_read": _s3_read,
    "journal_modes": _journal_modes,
    "copy_trees": _copy_trees,
    "database_pragmas": _database_pragmas,
    "sqlite_inserts": _sqlite_inserts,
    "delete_many": _delete_many,
    "scale": _scale,
}
