"""Tests of the generated manual pages."""

import shutil
import subprocess

import pytest

from contrib.docs import man_pages
from s3fs_meta.cli.entry import COMMANDS


def test_every_command_has_a_manual_page() -> None:
    """The program, each command and the helper of mount(8) have a manual page."""
    assert {f"s3fs-meta-{name}.1" for name in COMMANDS} | {
        "s3fs-meta.1",
        "mount.s3fs-meta.8",
    } == man_pages.pages().keys()


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_formats_every_manual_page_without_warnings() -> None:
    for name, text in man_pages.pages().items():
        done = subprocess.run(
            ["groff", "-man", "-Tascii", "-ww", "-Z"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == "", name


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_synopsis_of_the_mount_helper_page_is_a_valid_command_line() -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-P-cbou"],
        input=man_pages.pages()["mount.s3fs-meta.8"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "mount -t s3fs-meta [-o OPTIONS] URL DIRECTORY\n" in done.stdout


def test_special_characters_of_a_manual_page_are_escaped() -> None:
    """Dashes, backslashes and leading dots are escaped, so that roff does not interpret them."""
    assert man_pages.roff_text(r"a-b\n") == r"a\-b\en"
    assert man_pages.roff_text(".x") == r"\&.x"
    assert man_pages.roff_text("`ro`") == r"\fBro\fR"
