"""The section on damage of docs/design/durability.md equals the rules of the damage matrix."""

from pathlib import Path

from tests.damage_matrix.page import page

PAGE = Path(__file__).parents[2] / "docs" / "design" / "durability.md"


def test_documented_damage_section_matches_the_rules() -> None:
    """The section equals the output of ``python -m tests.damage_matrix.page``."""
    present = PAGE.read_text()
    assert present == page(present), "run make docs"
