"""Numbers with nouns, in messages."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun; the plural of its last word ends in s, or in ies for y."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"
