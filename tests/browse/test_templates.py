"""Tests of the HTML templates: their escaping, and the error if their library is missing."""

import sys
from unittest import mock

import pytest

from s3fs_meta.browse import templates
from s3fs_meta.errors import SettingsError


def test_missing_template_library_is_reported_in_one_line() -> None:
    with mock.patch.dict(sys.modules, {"jinja2": None}), pytest.raises(SettingsError) as raised:
        templates.load()
    assert "pip install 's3fs-meta[browse]'" in str(raised.value)


def test_values_in_html_templates_are_escaped() -> None:
    page = templates.load(root="/r", place='"', target="x", has_mount=False)(
        "error.html", title="<b>", why="<script>", is_framed=False
    ).decode()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
