"""Stand-in for an optional package that a block's file is made without."""


class NotInstalled:
    """What an optional import binds where the package is not installed: false, and an error once it is used."""

    def __init__(self, package: str) -> None:
        self._package = package

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ModuleNotFoundError(f"No module named {self._package!r} (optional, not part of this block)")

    def __call__(self, *arguments: object, **named: object) -> object:
        """Fail as the import would have."""
        raise ModuleNotFoundError(f"No module named {self._package!r} (optional, not part of this block)")
