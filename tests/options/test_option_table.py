"""Tests of the table of mount options and of the fields of MountOptions."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.options.option_row import Option
from s3fs_meta.options.option_table import OPTIONS
from s3fs_meta.options.settings import MountOptions
from tests.syntax_trees import nodes_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.word)
def test_documented_default_values_equal_the_actual_default_values(option: Option) -> None:
    """The option table has the same defaults as MountOptions. None is described in words."""
    actual = getattr(MountOptions(), option.field)

    if option.default:
        assert actual == option.parse(option.word, option.default)
    elif option.takes:
        assert actual is None
    else:
        assert actual != option.parse(option.word, "")


def _defaults(path: Path) -> Iterator[str]:
    """Yield the defaults of option fields in a module's classes."""
    words = {field.name for field in dataclasses.fields(MountOptions)}
    for kind in nodes_of(path, ast.ClassDef):
        for node in kind.body:
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.target.id in words
                and node.value is not None
                and ast.unparse(node.value) not in {"None", "False"}
            ):
                yield f"{path.stem}.{ast.unparse(node)}"


def test_default_values_are_defined_only_in_the_option_table() -> None:
    """No other class has its own default for an option, except None and False."""
    found = {one for path in (ROOT / "s3fs_meta").rglob("*.py") for one in _defaults(path)}
    taken = re.compile(r"settings\.(\w+): .* = default_of\('\1'\)")

    assert {one for one in found if not taken.fullmatch(one)} == {
        # The default page size applies only to a new database. A mount uses its own option.
        "pragmas.page_size: int = 4096",
        # No mount option sets the timeout of a single reply.
        "s3_access.read_timeout_s: float = STORE_READ_TIMEOUT_S",
        "model_fs.uid: int = 0",
        "model_fs.gid: int = 0",
    }


def test_option_table_has_a_row_for_each_option_field() -> None:
    assert {option.field for option in OPTIONS} == {
        field.name for field in dataclasses.fields(MountOptions)
    }


def test_mount_option_names_are_unique() -> None:
    assert len({option.word for option in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.word)
def test_every_option_documents_its_effect_and_cost_and_loss_after_a_crash(option: Option) -> None:
    assert all(text.endswith(".") for text in (option.does, option.costs, option.crash))
