"""Exceptions, named by how the caller handles them."""


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
