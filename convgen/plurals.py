"""Numbers of things, as messages say them."""

from __future__ import annotations


def plural(noun: str) -> str:
    """`boxes`, `entries`, `launches`, `stages`."""
    if noun.endswith(("s", "x", "ch")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def counted(number: int, noun: str) -> str:
    """A number and what it is of: `1 stage`, `2 stages`, `2 boxes`."""
    return f"{number} {noun if number == 1 else plural(noun)}"
