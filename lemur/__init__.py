"""The command line, and features that span several packages."""

TYPE_CHECKING = False  # `typing` takes longer to import than all that runs before the command handles Ctrl-C
if TYPE_CHECKING:
    from lemur.interface import diff, gate, synthesize
    from lemur.start import main as main
    from lemur_core.files.errors import UsageError, UserError
else:

    def __getattr__(name: str) -> object:
        """Import a public name on first access (PEP 562): each needs others of the packages below."""
        if name == "main":
            from lemur import start as module
        elif name.endswith("Error") and name in __all__:
            from lemur_core.files import errors as module
        elif name in __all__:
            from lemur import interface as module
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(module, name)


__all__ = ["UsageError", "UserError", "diff", "gate", "synthesize"]
