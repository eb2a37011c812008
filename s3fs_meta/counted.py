"""Numbers with their nouns in messages, such as "3 files"."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which gets the plural ending s, or ies instead of y."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"
