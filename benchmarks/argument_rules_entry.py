"""What `benchmarks.argument_rules` runs inside the sandbox: the search for arguments, with the way that it took."""

import time
from typing import Any
from unittest import mock

from extract.arguments import search_guest
from extract.arguments.forwarding import Search


def search(payload: dict[str, Any]) -> dict[str, Any]:
    """As `extract.arguments.search_guest:search_arguments`.

    Returns: `level`; `way`, the start and the edits of the call that counts; `seconds` of CPU time.
    """
    ways: list[tuple[object, tuple[str, ...]]] = []
    searches: list[Search] = []
    confirm = search_guest._confirm_refined

    class Watched(Search):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            searches.append(self)

    def confirmed(*args: Any) -> Any:
        result = confirm(*args)
        ways.append((result.answer["arguments"], searches[0].way))
        return result

    with mock.patch.multiple(search_guest, Search=Watched, _confirm_refined=confirmed):
        result = search_guest.search_arguments(payload)
    way = next((way for arguments, way in ways if arguments == result.get("arguments")), ())
    return {"level": result["level"], "way": list(way), "seconds": time.process_time()}
