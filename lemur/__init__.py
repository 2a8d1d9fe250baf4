"""The command, and what looks over several packages."""

from lemur.cli import main

__all__ = ["main"]
