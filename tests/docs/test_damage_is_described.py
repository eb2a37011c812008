"""docs/design/durability.md says what damage costs, as the rules of the matrix do."""

from pathlib import Path

from tests.damage_matrix.page import page

PAGE = Path(__file__).parents[2] / "docs" / "design" / "durability.md"


def test_section_on_damage_is_that_of_the_rules() -> None:
    """It is made by ``python -m tests.damage_matrix.page docs/design/durability.md``."""
    present = PAGE.read_text()
    assert present == page(present), "run make docs"
