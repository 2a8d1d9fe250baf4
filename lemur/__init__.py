"""The command line, and features that span several packages."""

from typing import TYPE_CHECKING

from lemur_core.files.errors import UsageError, UserError

if TYPE_CHECKING:
    from lemur.cli import main as main
    from lemur.interface import publish, run_pipeline, synthesize, trace, verify
else:

    def __getattr__(name: str) -> object:
        """Import a public name on first access (PEP 562): errors do not need the packages below."""
        if name == "main":
            from lemur import cli as module
        elif name in __all__:
            from lemur import interface as module
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(module, name)


__all__ = ["UsageError", "UserError", "publish", "run_pipeline", "synthesize", "trace", "verify"]
