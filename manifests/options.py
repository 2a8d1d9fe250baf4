"""Options shared by commands of several packages."""

from typing import Annotated

import typer

RuntimeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--runtime",
        metavar="NAME",
        help="A package that foreign code can import besides torch, torchvision and numpy, or lemur-nets: those that"
        " LEMUR's networks use (repeatable).",
        show_default=False,
    ),
]
