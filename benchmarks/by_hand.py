"""What `benchmarks.validation` compares with, inside the sandbox: no arguments, and one image."""

import sys
from typing import Any

import torch

from extract.arguments.search_guest import define


def call_with_an_image(payload: dict[str, Any]) -> bool:
    """Whether `Class()` can be called with one image of 64 x 64."""
    sys.path += payload["folders"]
    cls, _ = define(payload)
    if cls is None:
        return False
    with torch.no_grad():
        return cls().eval()(torch.randn(1, 3, 64, 64)) is not None
