"""Tests of statistics as metrics, read by the parsers of prometheus_client."""

import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client import Metric, parser
from prometheus_client.openmetrics import parser as open_parser

from s3fs_meta.mount.statistics.prometheus import STATES, MountFigures, text

FIGURES: dict[str, Any] = {
    "url": 's3://b/"home"\n',
    "uuid": "u",
    "label": "",
    "state": "serving",
    "read_only": False,
    "offline": "",
    "inodes": 5,
    "upload": {"left_s": None, "sent_bytes": 7, "last_error": "refused"},
    "image": {"last_ns": 0},
    "chain": {"created_ns": 1_500_000_000},
    "trees": {"copying": {"done": 1, "left": 2}, "locking": None},
    "store": {"get": {"requests": 3, "errors": 1, "sent_bytes": 0, "received_bytes": 9}},
    "billed": {"reads": {"get": {"requests": 4, "sent_bytes": 0, "received_bytes": 12}}},
    "latency": {
        "bounds_s": [0.000005, 0.01],
        "operations": {"read": {"counts": [1, 2, 4], "total_s": 1.5}},
    },
}
READINGS = (MountFigures("/a", FIGURES), MountFigures("/b", FIGURES), MountFigures("/c", None))


def _parsed(*, open_metrics: bool) -> dict[str, Metric]:
    page = text(READINGS, open_metrics=open_metrics).decode()
    parse = open_parser if open_metrics else parser
    return {one.name: one for one in parse.text_string_to_metric_families(page)}


def _values(families: Iterable[Metric], **labels: str) -> dict[str, float]:
    """Return the samples that have all given labels and no others."""
    return {
        sample.name: sample.value
        for family in families
        for sample in family.samples
        if sample.labels == labels
    }


@pytest.mark.parametrize("open_metrics", [False, True])
def test_prometheus_parsers_can_read_the_metrics(open_metrics: bool) -> None:
    found = _parsed(open_metrics=open_metrics)
    values = _values(found.values(), mountpoint="/b")

    assert values["s3fs_meta_inodes"] == 5
    assert values["s3fs_meta_read_only"] == 0
    assert values["s3fs_meta_upload_sent_bytes_total"] == 7
    assert values["s3fs_meta_bucket_txg_timestamp_seconds"] == 1.5
    assert _values(found.values(), mountpoint="/b", method="get") == {
        "s3fs_meta_store_requests_total": 3,
        "s3fs_meta_store_errors_total": 1,
        "s3fs_meta_store_sent_bytes_total": 0,
        "s3fs_meta_store_received_bytes_total": 9,
    }
    assert _values(found.values(), mountpoint="/b", cause="reads", **{"class": "get"}) == {
        "s3fs_meta_billed_requests_total": 4,
        "s3fs_meta_billed_sent_bytes_total": 0,
        "s3fs_meta_billed_received_bytes_total": 12,
    }
    info = {"mountpoint": "/b", "url": 's3://b/"home"\n', "uuid": "u", "label": ""}
    assert _values(found.values(), **info) == {"s3fs_meta_mount_info": 1}


@pytest.mark.parametrize("open_metrics", [False, True])
def test_request_latencies_are_exported_as_a_cumulative_histogram(open_metrics: bool) -> None:
    family = _parsed(open_metrics=open_metrics)["s3fs_meta_request_duration_seconds"]
    buckets = {
        sample.labels["le"]: sample.value
        for sample in family.samples
        if sample.labels["mountpoint"] == "/a" and "le" in sample.labels
    }

    assert family.type == "histogram"
    assert buckets == {"5e-06": 1, "0.01": 3, "+Inf": 7}
    assert _values([family], mountpoint="/a", operation="read") == {
        "s3fs_meta_request_duration_seconds_count": 7,
        "s3fs_meta_request_duration_seconds_sum": 1.5,
    }


def test_metric_names_follow_the_prometheus_conventions() -> None:
    """Each metric name ends with its unit, and only counters have the suffix ``_total``."""
    families = _parsed(open_metrics=True)

    assert all(name.startswith("s3fs_meta_") for name in families)
    assert all(name.endswith(f"_{one.unit}") for name, one in families.items() if one.unit)
    for name, one in families.items():
        assert one.unit or not name.endswith(("_bytes", "_seconds"))
        totals = {sample.name.endswith("_total") for sample in one.samples}
        assert totals <= {one.type == "counter"}, name
        assert one.documentation.endswith(".")


def test_unknown_value_has_no_prometheus_sample() -> None:
    """An unknown time is not exported as 1970, nor an unknown remaining time as 0."""
    values = _values(_parsed(open_metrics=True).values(), mountpoint="/a")

    assert "s3fs_meta_upload_left_seconds" not in values
    assert "s3fs_meta_image_timestamp_seconds" not in values
    assert "s3fs_meta_kernel_age_seconds" not in values


def test_mount_states_and_errors_that_do_not_apply_have_prometheus_samples() -> None:
    """A state or error that does not apply is exported with the value 0, for alert rules."""
    families = _parsed(open_metrics=True).values()

    states = {state: _values(families, mountpoint="/a", state=state) for state in STATES}
    assert [state for state in STATES if states[state] == {"s3fs_meta_state": 1}] == ["serving"]
    assert _values(families, mountpoint="/a", part="upload") == {"s3fs_meta_error": 1}
    assert _values(families, mountpoint="/a", part="image") == {"s3fs_meta_error": 0}
    assert _values(families, mountpoint="/a", work="copying") == {"s3fs_meta_tree_names_left": 2}
    assert _values(families, mountpoint="/a", work="locking") == {"s3fs_meta_tree_names_left": 0}


def test_mount_that_does_not_answer_is_reported_as_down_in_metrics() -> None:
    families = _parsed(open_metrics=True).values()

    assert _values(families, mountpoint="/c") == {"s3fs_meta_up": 0}
    assert _values(families, mountpoint="/a")["s3fs_meta_up"] == 1


def test_commands_start_without_an_import_of_prometheus_client() -> None:
    code = "import sys, s3fs_meta.cli.status, s3fs_meta.mount.service, s3fs_meta.mount.statistics.prometheus"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print('prometheus_client' in sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )

    assert done.stdout == "False\n"


@pytest.mark.parametrize("open_metrics", [False, True])
def test_metrics_page_with_a_mountpoint_that_is_not_utf8_can_be_parsed(open_metrics: bool) -> None:
    """The page of all mounts can be parsed even if one mountpoint is not UTF-8."""
    strange = os.fsdecode(b"/m\xff\n")
    page = text(
        [*READINGS, MountFigures(strange, FIGURES | {"url": strange})], open_metrics=open_metrics
    )
    parse = open_parser if open_metrics else parser
    found = {one.name: one for one in parse.text_string_to_metric_families(page.decode())}

    assert _values(found.values(), mountpoint="/b")["s3fs_meta_inodes"] == 5
    assert _values(found.values(), mountpoint="/m\\xff\n")["s3fs_meta_inodes"] == 5
