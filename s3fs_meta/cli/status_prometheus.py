"""``status --prometheus``: print the statistics of mounts in the text format of Prometheus."""

import sys
from pathlib import Path

import trio

from s3fs_meta.errors import ControlError
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.requests.control_api import ask_each, request_status
from s3fs_meta.mount.statistics import prometheus
from s3fs_meta.mount.statistics.prometheus import MountFigures
from s3fs_meta.mount_errors import NotMountedError


def show(target: str | None, cachedir: Path | None) -> None:
    """Print the statistics of a mount, or of all mounts on this host.

    If a mount does not answer or does not exist, its ``s3fs_meta_up`` is 0. If the command failed
    instead, node_exporter would continue to read the old values.
    """
    readings = trio.run(_readings, target, cachedir)
    sys.stdout.write(prometheus.text(readings, open_metrics=False).decode())


async def _readings(target: str | None, cachedir: Path | None) -> list[MountFigures]:
    if target is None:
        return await ask_each(targets.all_mounted(), _reading)
    try:
        place = targets.of_either(target, cachedir)
    except (NotMountedError, ControlError):
        return [MountFigures(target, None)]
    return [await _reading(place)]


async def _reading(place: Target) -> MountFigures:
    try:
        figures = await request_status(place)
    except (NotMountedError, ControlError):
        return MountFigures(place.mountpoint or place.url, None)
    return MountFigures(figures["mountpoint"], figures)
