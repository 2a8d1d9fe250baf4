"""Stand-in for a framework's way to its loggers: the standard library's, with messages that are given once."""

import functools
import logging


@functools.cache
def _warn_once(logger, message):
    logger.warning(message)


@functools.cache
def get_logger(name=None, *_, **__):
    """The logger of a name, with `warning_once`, `info_once` and `warning_advice`."""
    logger = logging.getLogger(name)
    logger.warning_once = lambda message, *_, **__: _warn_once(logger, str(message))
    logger.info_once = lambda message, *_, **__: None
    logger.warning_advice = logger.warning
    return logger
