"""Errors, named by what the caller does with them."""


class UserError(Exception):
    """What the user can mend: printed as one line (what, where, what to do), exit code 1."""


class UsageError(UserError):
    """A value of the command line that no run could use: exit code 2."""


class NoSandboxError(UserError):
    """Foreign code cannot be confined on this machine, so none is run."""


class RetryableError(UserError):
    """A failure of a resource (network, index): the same call may succeed later."""
