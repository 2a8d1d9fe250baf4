"""Exceptions, named by how the caller handles them; and the names that a message about a wrong one lists."""

from collections.abc import Iterable


class UserError(Exception):
    """An error that the user can fix: printed as one line (what, where, what to do), exit code 1."""


class UsageError(UserError):
    """A command-line value that is never valid: exit code 2."""


class NoSandboxError(UserError):
    """No sandbox works on this machine, so foreign code is not run."""


class SpecialFileError(UserError, OSError):
    """A pipe, a socket or a device where a file should be; in a finished folder it is damage like any other."""


class DamagedError(UserError):
    """A part of the cache was damaged, and has been dropped: the same call makes it again."""


class RetryableError(UserError):
    """A resource (network, index) failed: the same call may succeed later."""


class MissingNameError(UserError, KeyError):
    """Nothing, or more than one thing, has the name that was asked for."""

    __str__ = Exception.__str__  # that of KeyError quotes its message


def near_names(wanted: str, names: Iterable[str], most: int = 5) -> list[str]:
    """Return the names that are like a wrong one: those that hold it, equal and beginning ones first, then similar."""
    import difflib  # errors are imported by every process, and few are about a name

    known, folded = sorted(set(names)), wanted.casefold()
    holding = [name for name in known if folded and folded in name.casefold()]
    holding.sort(key=lambda name: (name.casefold() != folded, not name.casefold().startswith(folded)))
    return list(dict.fromkeys([*holding[:most], *difflib.get_close_matches(wanted, known, most)]))[:most]


def missing_name(problem: str, wanted: str, names: Iterable[str]) -> MissingNameError:
    """Return the error about a wrong name, with the near ones, or else some of those that there are."""
    known = list(names)
    near = near_names(wanted, known)
    hint = f"near names: {', '.join(near)}" if near else f"there are: {', '.join(known[:5]) or 'none'}"
    return MissingNameError(f"{problem}; {hint}")
