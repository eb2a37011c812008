"""Tests of the section about damage in docs/design/durability.md, which lists the matrix rules."""

from pathlib import Path

from tests.damage_matrix.page import page

PAGE = Path(__file__).parents[2] / "docs" / "design" / "durability.md"


def test_documented_effects_of_damage_match_the_damage_matrix() -> None:
    """The committed section matches the output of ``python -m tests.damage_matrix.page``."""
    present = PAGE.read_text()
    assert present == page(present), "the page is outdated; run make docs"
