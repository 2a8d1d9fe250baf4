"""Stand-ins for frameworks' loggers: the standard library's logging."""

import logging


class NamedLogger(logging.Logger):
    """A logger that can be asked for by its class."""

    @classmethod
    def get_instance(cls, name="root", **_):
        """The logger of a name."""
        return logging.getLogger(name)

    @classmethod
    def get_current_instance(cls):
        """The root logger."""
        return logging.getLogger()

    @classmethod
    def check_instance_created(cls, name):
        """Whether a logger of that name has been made; the standard library makes it when asked."""
        return True


def print_log(msg, logger=None, level=logging.INFO):
    """Log a message: to a logger, to the logger of a name, or nowhere ("silent")."""
    if logger == "silent":
        return
    if isinstance(logger, logging.Logger):
        logger.log(level, msg)
    elif logger is None or logger == "current":
        logging.getLogger(__name__).log(level, msg)
    else:
        logging.getLogger(logger).log(level, msg)
