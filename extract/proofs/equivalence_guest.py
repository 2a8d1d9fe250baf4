"""Sandbox guest: sign the results of classes as their own packages define them, as those of blocks are signed."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType

import torch

from extract.arguments.messages import BlockUses, Originals
from extract.arguments.search_guest import disable_denied, namespace
from extract.arguments.trials import AttemptError, BlockNamespace, attempt
from extract.proofs.visit_guest import exercise
from lemur_core.sandbox.server.foreign import name_type, read_message

_SECONDS = 120.0  # of CPU time, for one import


def sign_originals(request: Originals) -> dict[str, dict[str, object]]:
    """Return by block what `sign_results` does, or `missing` with the reason why there is no original."""
    disable_denied()
    if request.stir:
        _stir_memory()
    sys.path[:0] = request.folders
    signatures: dict[str, dict[str, object]] = {}
    for item in request.blocks:
        try:
            module = attempt(partial(importlib.import_module, item["module"]), _SECONDS)
            name = item["name"]
            # A nested class has no name of its own in the module, but an expression.
            cls = getattr(module, name) if name.isidentifier() else attempt(partial(eval, name, vars(module)), 1.0)
        except (AttemptError, AttributeError) as error:
            why = f"{name_type(error)}: {' '.join(read_message(error).split())}"
            signatures[item["block"]] = {"missing": why[:200]}
            continue
        uses = BlockUses("", item["name"], (), (), item["arguments"], (), sizes=(), others={}, backward=True)
        try:
            signatures[item["block"]] = exercise(cls, uses, _original_names(module, item["companions"]))
        except AttemptError as failure:
            signatures[item["block"]] = {"error": failure.message}
    return signatures


def _stir_memory() -> None:
    # Memory that is freed again with a known pattern: what reads it unset differs between two runs.
    junk = [torch.full((1 << bits,), 100 + bits, dtype=torch.uint8) for bits in range(6, 23) for _ in range(8)]
    junk.clear()


def _original_names(module: ModuleType, companions: Sequence[Mapping[str, str]]) -> BlockNamespace:
    block = dict(vars(module))
    for item in companions:
        dotted, _, name = item["qualname"].rpartition(".")
        try:
            block.setdefault(item["name"], getattr(attempt(partial(importlib.import_module, dotted), _SECONDS), name))
        except (AttemptError, AttributeError):
            continue  # if an argument needs it, its evaluation fails
    return namespace(block, [])
