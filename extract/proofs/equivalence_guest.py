"""Signatures of blocks and of their originals, which are equal if a self-contained file is a faithful copy.

Both sides run the same code: construct with a fixed seed, fill memory that the constructor left uninitialized, run
forward in eval and in train mode, and hash every tensor bit by bit.
"""

import hashlib
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import nn

from extract.arguments.constructing import construct
from extract.arguments.forwarding import ForwardCall, evaluate
from extract.arguments.messages import BlockRun, CallsToRun, Originals
from extract.arguments.search_guest import define, disable_denied, namespace
from extract.arguments.trials import (
    MODULE_NAME,
    AttemptError,
    BlockNamespace,
    attempt,
    fill_unset,
    hide,
    seed_all,
    unset_is_nan,
)
from extract.arguments.values import flatten, has_shape
from lemur_core.sandbox.server.foreign import name_type, read_message


def sign_block(request: BlockRun) -> dict[str, Any]:
    """Return the signature of the class in a self-contained file, or `error`."""
    disable_denied()
    sys.path += request.folders
    hide(request.origin)
    cls, stopped = define({"code": request.code, "name": request.name})
    if cls is None:
        return {"error": stopped["error"]}
    return signature(cls, request.arguments, namespace(vars(sys.modules[MODULE_NAME]), request.companions))


def sign_originals(request: Originals) -> dict[str, dict[str, Any]]:
    """Return the signature of each block id, or `missing` with the reason why there is no original."""
    disable_denied()
    if request.stir:
        _stir_memory()
    sys.path[:0] = request.folders
    signatures: dict[str, dict[str, Any]] = {}
    for item in request.blocks:
        try:
            module = attempt(partial(importlib.import_module, item["module"]), _IMPORT_SECONDS)
            name = item["name"]
            # A nested class has no name of its own in the module, but an expression.
            cls = getattr(module, name) if name.isidentifier() else attempt(partial(eval, name, vars(module)), 1.0)
        except (AttemptError, AttributeError) as error:
            why = f"{name_type(error)}: {' '.join(read_message(error).split())}"
            signatures[item["block"]] = {"missing": why[:200]}
            continue
        signatures[item["block"]] = signature(cls, item["arguments"], _original_names(module, item["companions"]))
    return signatures


def _stir_memory() -> None:
    # Memory that is freed again with a known pattern: what reads it unset differs between two runs.
    junk = [torch.full((1 << bits,), 100 + bits, dtype=torch.uint8) for bits in range(6, 23) for _ in range(8)]
    junk.clear()


_IMPORT_SECONDS = 120.0
_SECONDS = 20.0  # of CPU time, for one step


def _original_names(module: ModuleType, companions: Sequence[Mapping[str, str]]) -> BlockNamespace:
    block = dict(vars(module))
    for item in companions:
        dotted, _, name = item["qualname"].rpartition(".")
        try:
            block.setdefault(
                item["name"], getattr(attempt(partial(importlib.import_module, dotted), _IMPORT_SECONDS), name)
            )
        except (AttemptError, AttributeError):
            continue  # if an argument needs it, its evaluation fails
    return namespace(block, [])


def signature(cls: type[nn.Module], arguments: CallsToRun, names: BlockNamespace) -> dict[str, Any]:
    """Return the names and shapes of a class's state, and the digests of its state and outputs, or `error`."""
    called = ForwardCall(tuple(arguments["forward"]["args"]), tuple(arguments["forward"]["kwargs"].items()))
    try:
        # `torch.empty` gives whatever was there before, which would differ by chance.
        with unset_is_nan():
            module = construct(cls, arguments["init"], names, _SECONDS)
        fill_unset(module)
        result: dict[str, Any] = {"state": _list_state(module), "values": digest(module.state_dict())}
        for mode in ("eval", "train"):
            module.train(mode == "train")
            result[mode] = _output(module, called, names)
        result["after"] = digest(module.state_dict())
    except AttemptError as failure:
        return {"error": failure.message}
    return result


def _output(module: nn.Module, called: ForwardCall, names: BlockNamespace) -> str:
    """Return the digest of the output of forward, or the type of its error; some classes fail in train mode."""
    seed_all()
    # Seeded before the inputs and again before the run: neither depends on how much the other draws.
    args, kwargs = evaluate(called, names)
    seed_all()

    def action() -> Any:
        with torch.no_grad():
            return module(*args, **kwargs)

    try:
        return digest(attempt(action, _SECONDS))
    except AttemptError as failure:
        return f"raises {name_type(failure.cause)}"


def _list_state(module: nn.Module) -> list[str]:
    return [
        f"{name} {tuple(tensor.shape) if has_shape(tensor) else 'lazy'}"
        for name, tensor in module.state_dict(keep_vars=True).items()
        if isinstance(tensor, torch.Tensor)
    ]


def digest(value: object) -> str:
    """Return the SHA-256 of the tensors in a value: their dtypes, shapes and bits."""
    text = hashlib.sha256()
    for tensor in flatten(value):
        # Lazy parameters have no shape before the first run.
        if not has_shape(tensor):
            text.update(b"lazy")
            continue
        for part in _dense(tensor.detach()):
            text.update(f"{part.dtype} {tuple(part.shape)}".encode())
            text.update(part.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return text.hexdigest()


def _dense(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.is_sparse:
        tensor = tensor.coalesce()
        yield from (tensor.indices(), tensor.values())
    elif tensor.layout is not torch.strided:
        yield tensor.to_dense()
    elif tensor.is_quantized:
        yield tensor.int_repr()
    else:
        yield tensor.resolve_conj().resolve_neg()
