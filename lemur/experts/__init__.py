"""Inject domain knowledge into a frozen LLM as a single token: domain experts, a codebook, an untrained router."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lemur.experts import command as command
else:

    def __getattr__(name: str) -> object:
        """Import the commands when the first one runs (PEP 562): they load torch, which `--help` does not need."""
        if name != "command":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import lemur.experts.command as module

        return module
