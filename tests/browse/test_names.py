"""Tests of file names in URLs, on pages and in suggested commands."""

import subprocess

import pytest

from s3fs_meta.browse import names

STRANGE = [
    b"plain",
    b"a b",
    b"it's",
    b"new\nline",
    b"\xff\xfe'\\",
    "\u202e\u00e4".encode(),
    b'$(touch x)`x`"',
    bytes(sorted(set(range(1, 256)) - {0x2F})),
]


@pytest.mark.parametrize("name", STRANGE)
def test_file_name_survives_url_and_shell_quoting_unchanged(name: bytes) -> None:
    assert names.from_url(names.to_url(b"d/" + name).encode()) == [b"d", name]
    printed = subprocess.run(
        ["bash", "-c", f"printf %s {names.shell_word(name)}"], capture_output=True, check=True
    )
    assert printed.stdout == name


@pytest.mark.parametrize("path", [b"a/../b", b"%2e%2e", b".", b"a%2fb", b"a%00"])
def test_browse_url_with_an_invalid_path_is_refused(path: bytes) -> None:
    assert names.from_url(path) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [(b"\xff", "\\xff"), (b"a\nb", "a\\nb"), ("\u202ex".encode(), "\\u202ex"), (b"ok", "ok")],
)
def test_invisible_characters_in_file_names_are_escaped(name: bytes, text: str) -> None:
    assert names.shown(name) == text


@pytest.mark.parametrize(
    ("name", "plain", "full"),
    [
        (b"report.txt", "report.txt", "report.txt"),
        (b'a"; filename="b', "a__ filename=_b", "a%22%3B%20filename%3D%22b"),
        (b"a\r\nSet-Cookie: x", "a__Set-Cookie_ x", "a__Set-Cookie%3A%20x"),
        ("\u202egnp.exe".encode(), "_gnp.exe", "_gnp.exe"),
        ("ä".encode(), "_", "%C3%A4"),
        (b"\xff", "_", "%EF%BF%BD"),
        (b"..\\..\\x", ".._.._x", ".._.._x"),
        (b"a%2fb*'", "a_2fb__", "a%252fb%2A%27"),
    ],
)
def test_file_name_in_a_download_header_is_quoted(name: bytes, plain: str, full: str) -> None:
    expected = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{full}"
    assert names.attachment(name) == expected


def test_deceptive_unicode_characters_in_texts_are_escaped() -> None:
    text = "a\tb\r\nc\u202ed\x1b[1m\u2066e\rf ä\u200d"
    assert names.without_controls(text) == "a\tb\r\nc\\u202ed\\x1b[1m\\u2066e\\rf ä\u200d"
