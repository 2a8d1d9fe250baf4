"""Errors, named by what the caller does with them."""


class UserError(Exception):
    """What the user can mend: printed as one line (what, where, what to do), exit code 1."""


class RetryableError(UserError):
    """A failure of a resource (network, index): the same call may succeed later."""
