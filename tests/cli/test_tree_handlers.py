"""What the control socket takes for a name."""

import pytest

from s3fs_meta.cli.tree_handlers import _entry
from s3fs_meta.control.protocol import Message
from s3fs_meta.errors import UsageError


def test_name_may_have_any_bytes() -> None:
    """As paths on the command line."""
    assert _entry({"parent": 1, "name": "a\udcff", "ino": 2}) == (1, b"a\xff", 2)


@pytest.mark.parametrize(
    "arguments", [{}, {"parent": "1", "name": "a", "ino": 2}, {"parent": 1, "name": 3, "ino": 2}]
)
def test_message_of_another_form_is_refused(arguments: Message) -> None:
    """A client of another version is told so."""
    with pytest.raises(UsageError):
        _entry(arguments)
