"""Sandbox guest: compare a block with the code of a project, and run it as a module of the project.

`compare_definitions` reports which classes and functions of the project are equivalent to those in the block's file, as
the block uses them; `sign_in_project` runs the block's module in the project, and its smoke test.
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
from extract.minimize.watch_guest import exercise
from extract.proofs.comparing import IMPORT_SECONDS, SECONDS, Watch, refusal
from extract.proofs.trace_guest import structure_of
from lemur_core.sandbox.server.foreign import load, one_line

_SMOKE = "smoke_test"  # module name of a smoke test


def enter_project(payload: Mapping[str, Any]) -> None:
    """Make the project's own modules importable, with priority over others of the same names.

    Args: payload: `roots`, folders to import from; `packages`, the top-level names of its modules; `folders` with the
        requirements of the project and the block, for the end of sys.path.
    """
    sys.dont_write_bytecode = True
    compile_nothing()
    for name in [name for name in sys.modules if name.partition(".")[0] in payload["packages"]]:
        del sys.modules[name]
    sys.path[:0] = payload["roots"]
    sys.path += payload["folders"]


# --- as a module of the project ---------------------------------------------------------------------------------------


def sign_in_project(payload: dict[str, Any]) -> dict[str, Any]:
    """Sign the results of a block as a module of the project in every known working way, and run its smoke test.

    Args:
        payload: as for `enter_project`; `module` and `name` to import; `arguments` and `sizes` as for
            `extract.minimize.watch_guest.sign_lean`; `test`, the path of the smoke test.

    Returns: `{"error"}` if it cannot be imported or constructed; else as `sign_lean`, and `test`: the number of tests
        that passed, or the error of one that failed.
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
        signature = exercise(cls, payload, namespace(vars(module), []))
    except AttemptError as failure:
        return {"error": one_line(failure.message, 300)}
    return {**signature, "test": _run_tests(Path(payload["test"]))}


def import_first(payload: dict[str, Any]) -> dict[str, Any]:
    """Import a module of the project before any other.

    Args: payload: as for `enter_project`; `module` to import.
    Returns: `{"error"}`, or an empty dict.
    """
    enter_project(payload)
    try:
        attempt(partial(importlib.import_module, payload["module"]), IMPORT_SECONDS)
    except AttemptError as failure:
        return {"error": f"{payload['module']} cannot be imported then: {one_line(failure.message, 300)}"}
    return {}


def _run_tests(path: Path) -> int | str:
    """Run the tests of a file. Returns: the number of passed tests, or the error of one that failed."""
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


# --- comparison with the project's code -------------------------------------------------------------------------------


def compare_definitions(payload: dict[str, Any]) -> dict[str, Any]:
    """Compare definitions of a project with those of a block, as the block uses them.

    Args:
        payload: as for `enter_project`; `code`, `name` and `arguments` of the block; `wanted`, each with the `name` of
            a definition of its file and `options`, each `module` and `name` in the project.

    Returns: `{"error"}` if the block does not run; else `refused`, for each wanted name and option the reason why they
        differ ("" if they do not); and the facts for a smoke test: `returns` (as in `trace_block`), `shapes` of the
        returned tensors, `trains` (it runs in train mode), `reached` (number of parameters with gradients, number of
        trainable parameters), and `differentiable` (whether any gradient arrives).
    """
    enter_project(payload)
    torch.jit._state.disable()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        subject = Subject(payload)
        watch = Watch(subject.file, {item["name"] for item in payload["wanted"]})
        with watch.watching():
            facts = _run(subject)
    except AttemptError as failure:
        return {"error": failure.message}
    refused = [
        [refusal(subject.file, item["name"], option, watch.cases.get(item["name"], {})) for option in item["options"]]
        for item in payload["wanted"]
    ]
    return {**facts, "refused": refused}


def _run(subject: Subject) -> dict[str, Any]:
    """Run the block in eval and in train mode. Returns: the facts for a smoke test."""
    facts: dict[str, Any] = {"trains": True}
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
            facts["trains"] = False
            break
        facts |= _facts(module, output)
    return facts


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
