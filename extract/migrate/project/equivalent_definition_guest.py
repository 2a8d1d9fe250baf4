"""Inside the sandbox: a block beside the code of a project, and as a module of it.

`compare_definitions` tells which classes and functions of the project do what those in the block's file do, as the
block uses them; `sign_in_project` runs the block as the project has it, and its smoke test.
"""

import importlib
import sys
import unittest
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from extract.arguments.inputs import flatten
from extract.arguments.search_guest import compile_nothing, namespace
from extract.arguments.target import Subject
from extract.arguments.trials import AttemptError, attempt, seed_all
from extract.minimize.watch_guest import exercised
from extract.proofs.comparing import IMPORT_SECONDS, SECONDS, Watch, refusal
from extract.proofs.trace_guest import structure_of
from lemur_core.sandbox.server.foreign import load, one_line

_SMOKE = "smoke_test"  # the module that a smoke test becomes


def enter_project(payload: Mapping[str, Any]) -> None:
    """Make the project's own modules importable, before any other of their names.

    Args: payload: `roots`, folders to import from; `packages`, the first parts of its modules' names; `folders`, with
        what it and the block require, for the end of sys.path.
    """
    sys.dont_write_bytecode = True
    compile_nothing()
    for name in [name for name in sys.modules if name.partition(".")[0] in payload["packages"]]:
        del sys.modules[name]
    sys.path[:0] = payload["roots"]
    sys.path += payload["folders"]


# --- as a module of the project ---------------------------------------------------------------------------------------


def sign_in_project(payload: dict[str, Any]) -> dict[str, Any]:
    """What comes of a block as a module of the project in every way that is known to work, and of its smoke test.

    Args:
        payload: as for `enter_project`; `module` and `name` to import; `arguments` and `sizes` as for
            `extract.minimize.watch_guest.sign_lean`; `test`, the path of the smoke test.

    Returns: `{"error"}`, where it cannot be imported or constructed; else as `sign_lean`, and `test`: how many tests
        passed, or why one failed.
    """
    enter_project(payload)
    try:
        module = attempt(partial(importlib.import_module, payload["module"]), IMPORT_SECONDS)
    except AttemptError as failure:
        return {"error": f"{payload['module']} cannot be imported: {one_line(failure.message, 300)}"}
    cls = getattr(module, payload["name"], None)
    if not isinstance(cls, type):
        return {"error": f"{payload['module']} defines no class {payload['name']}"}
    try:
        found = exercised(cls, payload, namespace(vars(module), []))
    except AttemptError as failure:
        return {"error": one_line(failure.message, 300)}
    return {**found, "test": _tested(Path(payload["test"]))}


def import_first(payload: dict[str, Any]) -> dict[str, Any]:
    """Import a module of the project before any other.

    Args: payload: as for `enter_project`; `module` to import.
    Returns: `{"error"}`, or nothing.
    """
    enter_project(payload)
    try:
        attempt(partial(importlib.import_module, payload["module"]), IMPORT_SECONDS)
    except AttemptError as failure:
        return {"error": f"{payload['module']} cannot be imported then: {one_line(failure.message, 300)}"}
    return {}


def _tested(path: Path) -> int | str:
    """How many tests of a file passed; why one of them did not."""
    try:
        module = attempt(partial(load, path.read_text(encoding="utf-8"), _SMOKE), IMPORT_SECONDS)
        functions = [value for name, value in vars(module).items() if name.startswith("test_") and callable(value)]
        for function in functions:
            attempt(function, SECONDS)
    except AttemptError as failure:
        return one_line(failure.message, 300)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    for _, trace in (*result.errors, *result.failures):
        return one_line(trace.strip().splitlines()[-1], 300)
    return len(functions) + result.testsRun


# --- beside the project's code ----------------------------------------------------------------------------------------


def compare_definitions(payload: dict[str, Any]) -> dict[str, Any]:
    """Which definitions of a project do what those of a block do, as the block uses them.

    Args:
        payload: as for `enter_project`; `code`, `name` and `arguments` of the block; `wanted`, each with the `name` of
            a definition of its file and `options`, each `module` and `name` in the project.

    Returns: `{"error"}`, where the block does not run; else `refused`, for each of the wanted and each option why it is
        not the same, "" where it is; and what a smoke test can ask: `returns` (as `trace_block` tells it), `shapes` of
        the tensors that are returned, `trains` (it runs in train mode), `reached`: of how many parameters how many get
        gradients, and `differentiable`: whether any gradient arrives.
    """
    enter_project(payload)
    torch.jit._state.disable()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        subject = Subject(payload)
        watch = Watch(subject.file, {item["name"] for item in payload["wanted"]})
        with watch.watching():
            told = _run(subject)
    except AttemptError as failure:
        return {"error": failure.message}
    refused = [
        [refusal(subject.file, item["name"], option, watch.cases.get(item["name"], {})) for option in item["options"]]
        for item in payload["wanted"]
    ]
    return {**told, "refused": refused}


def _run(subject: Subject) -> dict[str, Any]:
    """Run the block in eval and in train mode. Returns: what a smoke test can ask."""
    told: dict[str, Any] = {"trains": True}
    for train in (False, True):
        module = subject.build()
        subject.settle(module)
        module.train(train)
        args, kwargs = subject.inputs(live=True)
        seed_all()
        try:
            output = attempt(partial(module, *args, **kwargs), SECONDS)
        except AttemptError:
            if not train:
                raise
            told["trains"] = False
            break
        told |= _facts(module, output)
    return told


def _facts(module: nn.Module, output: Any) -> dict[str, Any]:
    tensors = flatten(output)
    live = [one for one in tensors if one.requires_grad and one.numel()]
    total = sum(((one.abs() if one.is_complex() else one).double().sum() for one in live), start=torch.zeros(()))
    try:
        attempt(partial(total.backward) if live else lambda: None, SECONDS)
    except AttemptError:
        live = []
    wanted = [one for one in module.parameters() if one.requires_grad]
    return {
        "returns": structure_of(output),
        "shapes": [list(one.shape) for one in tensors],
        "reached": [sum(one.grad is not None for one in wanted), len(wanted)],
        "frozen": any(not one.requires_grad for one in module.parameters()),
        "differentiable": bool(live),
        "complex": any(one.is_complex() for one in tensors),
        "floating": [one.is_floating_point() and one.requires_grad for one in tensors],
    }
