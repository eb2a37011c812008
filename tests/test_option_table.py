"""The table of mount options agrees with the fields of MountOptions."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.option_table import OPTIONS, Option
from s3fs_meta.settings import MountOptions

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.word)
def test_documented_default_is_the_default(option: Option) -> None:
    """Rows of one field have one default, that of MountOptions; a default in prose means None."""
    actual = getattr(MountOptions(), option.field)

    if option.default:
        assert actual == option.parse(option.word, option.default)
    elif option.takes:
        assert actual is None
    else:
        assert actual != option.parse(option.word, "")


def _defaults(path: Path) -> Iterator[str]:
    """Yield the defaults that the classes of a module give to fields that are options."""
    words = {field.name for field in dataclasses.fields(MountOptions)}
    for kind in ast.walk(ast.parse(path.read_text())):
        for node in kind.body if isinstance(kind, ast.ClassDef) else ():
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.target.id in words
                and node.value is not None
                and ast.unparse(node.value) not in {"None", "False"}
            ):
                yield f"{path.stem}.{ast.unparse(node)}"


def test_table_is_the_only_home_of_defaults() -> None:
    """Settings take them from it, and other parts from settings. None and False are no choice."""
    found = {one for path in (ROOT / "s3fs_meta").rglob("*.py") for one in _defaults(path)}
    taken = re.compile(r"settings\.(\w+): .* = default_of\('\1'\)")

    assert {one for one in found if not taken.fullmatch(one)} == {
        "pragmas.page_size: int = 4096",  # of a new database: the option's default is its own
        "s3_access.read_timeout_s: float = STORE_READ_TIMEOUT_S",  # of one answer of the server
        "model_fs.uid: int = 0",
        "model_fs.gid: int = 0",
    }


def test_every_field_has_an_option_and_every_option_a_field() -> None:
    """Options and fields of MountOptions correspond one to one."""
    assert {option.field for option in OPTIONS} == {
        field.name for field in dataclasses.fields(MountOptions)
    }


def test_option_names_are_unique() -> None:
    """No option has two rows in the table."""
    assert len({option.word for option in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.word)
def test_every_option_documents_effect_cost_and_crash_loss(option: Option) -> None:
    """No column of the documentation is empty."""
    assert all(text.endswith(".") for text in (option.does, option.costs, option.crash))
