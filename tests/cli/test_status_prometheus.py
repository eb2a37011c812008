"""The metrics that ``status --prometheus`` prints."""

import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX
from tests.programs import Program


def _samples(page: str) -> dict[str, float]:
    """Return samples whose only label is the mountpoint, and request counts by operation."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.labels.keys() == {"mountpoint"}:
                found[sample.name] = sample.value
            elif sample.name.endswith("_seconds_count"):
                found[sample.labels["operation"]] = sample.value
    return found


@pytest.mark.mount
def test_prometheus_output_contains_the_metrics_of_a_mount(program: Program, unsent: Place) -> None:
    (unsent.mountpoint / "f").write_bytes(b"x" * 5000)
    (unsent.mountpoint / "f").rename(unsent.mountpoint / "g")

    found = _samples(program.ok("status", "--prometheus", unsent.mountpoint))
    everything = program.ok("status", "--prometheus", here=False)

    assert found["s3fs_meta_up"] == 1
    assert found["s3fs_meta_inodes"] == 2
    assert found["s3fs_meta_file_bytes"] == 5000
    assert found["s3fs_meta_upload_pending_bytes"] == 5000
    assert found["rename"] == 1
    assert found["write"] == 1
    assert f's3fs_meta_up{{mountpoint="{unsent.mountpoint}"}} 1.0\n' in everything


@pytest.mark.mount
def test_prometheus_output_reports_a_killed_mount_as_down(program: Program, mounted: Place) -> None:
    """For a killed mount, status --prometheus succeeds, so a cron job still updates its file."""
    program.kill(mounted.mountpoint)

    assert _samples(program.ok("status", "--prometheus", mounted.mountpoint)) == {"s3fs_meta_up": 0}


def test_prometheus_output_reports_a_path_without_a_mount_as_down(
    program: Program, tmp_path: Path
) -> None:
    page = program.ok("status", "--prometheus", tmp_path)

    assert f's3fs_meta_up{{mountpoint="{tmp_path}"}} 0.0\n' in page


@pytest.mark.mount
def test_mount_serves_its_metrics_over_http(program: Program, place: Place) -> None:
    program.ok("mount", "-o", "metrics=0", place.url, place.mountpoint)
    address = program.status(place.mountpoint)["metrics"]

    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PROCESS_S_MAX) as reply:
        page = reply.read().decode()

    program.ok("umount", place.mountpoint)
    assert address.startswith("127.0.0.1:")
    assert _samples(page)["s3fs_meta_inodes"] == 1
