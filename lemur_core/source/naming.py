"""Names that are free."""

from collections.abc import Container


def fresh_name(wanted: str, taken: Container[str]) -> str:
    """The name with the first number that makes it another one: `Block_2`."""
    number = 2
    while f"{wanted}_{number}" in taken:
        number += 1
    return f"{wanted}_{number}"
