"""Utilities that know nothing of networks: files, processes, progress, errors."""

from typing import Any

#: A JSON object, as Python decodes it.
Json = dict[str, Any]
