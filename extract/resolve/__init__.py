"""Resolution of the names in a source: modules, symbols, registrations, values."""

from typing import Literal

#: What happens with files that are not indexed: only they are parsed, all files are, or none.
Policy = Literal["missing", "force", "skip"]
