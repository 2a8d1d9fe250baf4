"""Sandbox guest: run the printed call of a block below its file, or as a project imports it, and sign the results."""

import importlib
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from extract.arguments.messages import BlockInPlace, CallRequest
from extract.arguments.search_guest import disable_denied, namespace
from extract.arguments.trials import AttemptError, attempt, hide, load, seed_all
from extract.arguments.values import flatten
from extract.proofs.visit_guest import digest, exercise
from lemur_core.sandbox.server.foreign import one_line
from lemur_core.sandbox.server.jobs import Failure

# CPU seconds of one step; the limits of the sandbox come first.
_SECONDS = 120.0
_CALL_SECONDS = 60.0


def run_call(request: CallRequest) -> str | Failure:
    """Execute lines with the names of a file. Returns: "ran", or the error."""
    disable_denied()
    sys.path += request.folders
    hide(request.origin)
    try:
        module = attempt(partial(load, request.code), _CALL_SECONDS)
        names = _list_names(module)
        for lines in (request.lines[:-1], request.lines[-1:]):  # seeded again before the call, as in the visit
            attempt(partial(_execute, [*lines, "None"], names), _CALL_SECONDS)
    except AttemptError as failure:
        return Failure(failure.message)
    return "ran"


def import_package(request: BlockInPlace) -> str:
    """Import the packages around a module, whose `__init__` files run. Returns: why that fails; "" if it does not."""
    _prepare(request)
    package = request.module.rpartition(".")[0]
    try:
        if package:
            attempt(partial(importlib.import_module, package), _SECONDS)
    except AttemptError as failure:
        return one_line(failure.message, 300)
    return ""


def sign_in_place(request: BlockInPlace) -> Failure | dict[str, object]:
    """Execute the printed call, then run the block in every known way.

    Returns: why it does not run, or the fields of `extract.proofs.visit.Signed`.
    """
    _prepare(request)
    try:
        module = _import(request) if request.module else attempt(partial(load, request.code), _SECONDS)
        if request.module and Path(getattr(module, "__file__", None) or "").resolve() != Path(request.file).resolve():
            return Failure(f"Python imports {request.module} from elsewhere; choose another name for the file")
        # The printed call imports what it names from the project; below its own file, it has the names of that.
        names = {} if request.module else {"torch": torch, "nn": torch.nn, **_list_names(module)}
        printed = digest(flatten(attempt(partial(_execute, request.lines, names), _SECONDS)))
        signed = exercise(getattr(module, request.name), request, namespace(vars(module), []))
    except AttemptError as failure:
        return Failure(one_line(failure.message, 300))
    steps: Any = signed["steps"]
    del steps["repr"]  # it may name the module
    return {**signed, "steps": {"the printed call": printed, **steps}}


def _prepare(request: BlockInPlace) -> None:
    sys.dont_write_bytecode = True
    disable_denied()
    sys.path += request.folders
    if request.module:
        # The sandbox has preloaded packages; the project may have the name of one.
        top = request.module.partition(".")[0]
        for name in [name for name in sys.modules if name.partition(".")[0] == top]:
            del sys.modules[name]
        sys.path.insert(0, request.root)


def _import(request: BlockInPlace) -> ModuleType:
    *packages, _ = request.module.split(".")
    for number in range(1, len(packages) + 1) if request.bare else ():
        package = ModuleType(".".join(packages[:number]))
        package.__path__ = [str(Path(request.root, *packages[:number]))]
        sys.modules[package.__name__] = package
    module: ModuleType = attempt(partial(importlib.import_module, request.module), _SECONDS)
    return module


def _list_names(module: ModuleType) -> dict[str, Any]:
    """Return the names of a file; a placeholder that only annotations use is none."""
    return {name: value for name, value in vars(module).items() if value is not object}


def _execute(lines: Sequence[str], names: dict[str, Any]) -> Any:
    """Execute lines and return the value of the last one."""
    seed_all()
    exec(compile("\n".join(lines[:-1]), "<call>", "exec"), names)  # noqa: S102 - in the sandbox
    return eval(compile(lines[-1], "<call>", "eval"), names)
