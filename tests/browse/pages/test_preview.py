"""Tests of the detection of text files and pictures by their first bytes."""

import pytest

from s3fs_meta.browse.pages import preview


@pytest.mark.parametrize(
    ("begin", "kind"),
    [
        (b"\x89PNG\r\n\x1a\nx", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8", "image/webp"),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"<svg xmlns='http://www.w3.org/2000/svg'>", None),
        (b"<html>", None),
        (b"", None),
    ],
)
def test_only_raster_images_are_recognised_as_images(begin: bytes, kind: str | None) -> None:
    assert preview.picture_type(begin) == kind


def test_preview_of_a_longer_text_may_end_in_the_middle_of_a_character() -> None:
    assert preview.text_of("aä".encode()[:-1], is_cut=True) == "a"


def test_file_that_ends_in_the_middle_of_a_character_is_no_text() -> None:
    """Without its last bytes, the file would look equal to another one in a comparison."""
    assert preview.text_of("aä".encode(), is_cut=False) == "aä"
    assert preview.text_of("aä".encode()[:-1], is_cut=False) is None


@pytest.mark.parametrize("is_cut", [True, False])
def test_file_with_other_bytes_is_no_text(is_cut: bool) -> None:
    assert preview.text_of(b"a\0", is_cut=is_cut) is None
    assert preview.text_of(b"\xff\xfe", is_cut=is_cut) is None
