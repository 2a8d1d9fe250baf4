"""A tab of a browser for the tests of pages; its console stays silent."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import browser


@pytest.fixture(scope="module")
def open_tab() -> Iterator[Any]:
    with browser.browser() as made:
        yield made


@pytest.fixture
def tab(open_tab: Any) -> Iterator[Any]:
    open_tab.faults.clear()
    yield open_tab
    assert open_tab.faults == [], "the console stays silent"
