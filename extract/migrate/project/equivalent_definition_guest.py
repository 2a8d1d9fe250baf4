"""Sandbox guest: compare a block with the code of a project, and run it as a module of the project.

`compare_definitions` reports which classes and functions of the project are the same as those in the block's file;
`sign_in_project` runs the block's module in the project, and its smoke test.

Two definitions are the same if their text is, apart from comments, docstrings and annotations, and every global name in
it means the same in both modules. `Block` below may come from the project, `scale` may not, since `LIMIT` differs:

    LIMIT = 3                        LIMIT = 4
    def scale(x): return x * LIMIT   def scale(x: float): return x * LIMIT
    class Block: size = 2            class Block: size = 2  # twice
"""

import ast
import importlib
import inspect
import sys
import textwrap
import unittest
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from extract.arguments.inputs import flatten
from extract.arguments.messages import BlockRun, BlockUses
from extract.arguments.search_guest import compile_nothing, namespace
from extract.arguments.target import Target
from extract.arguments.trials import AttemptError, attempt, seed_all
from extract.minimize.watch_guest import exercise
from extract.proofs.trace_guest import describe_structure
from lemur_core.sandbox.server.foreign import load, one_line

_SMOKE = "smoke_test"  # module name of a smoke test
_SECONDS = 60.0  # of CPU time, for one step; the sandbox sets the hard limit
_IMPORT_SECONDS = 120.0
_DEPTH = 6  # maximum length of a chain of definitions that name each other
_ABSENT = object()  # the value of a name that a module does not bind
_ITSELF = "_itself"  # replaces a definition's own name


def enter_project(payload: Mapping[str, Any]) -> None:
    """Make the project's own modules importable, with priority over others of the same names.

    Args: payload: `roots`, folders to import from; `packages`, the top-level names of its modules; `folders` with the
        requirements of the project and the block, for the end of sys.path.
    """
    sys.dont_write_bytecode = True
    compile_nothing()
    # The sandbox has preloaded packages; a module of the project may have the name of one.
    for name in [name for name in sys.modules if name.partition(".")[0] in payload["packages"]]:
        del sys.modules[name]
    sys.path[:0] = payload["roots"]
    sys.path += payload["folders"]


# --- as a module of the project ---------------------------------------------------------------------------------------


def sign_in_project(payload: dict[str, Any]) -> dict[str, Any]:
    """Sign the results of a block as a module of the project in every known working way, and run its smoke test.

    Args:
        payload: as for `enter_project`; `module` and `name` to import; `arguments` and `sizes` as for
            `extract.minimize.watch_guest.sign_results`; `test`, the path of the smoke test.

    Returns: `{"error"}` if it cannot be imported or constructed; else as `sign_lean`, and `test`: the number of tests
        that passed, or the error of one that failed.
    """
    enter_project(payload)
    try:
        module = attempt(partial(importlib.import_module, payload["module"]), _IMPORT_SECONDS)
    except AttemptError as failure:
        return {"error": f"{payload['module']} cannot be imported: {one_line(failure.message, 300)}"}
    cls = getattr(module, payload["name"], None)
    if not isinstance(cls, type):
        return {"error": f"{payload['module']} defines no class {payload['name']}"}
    try:
        use = BlockUses("", payload["name"], (), (), payload["arguments"], (), payload["sizes"], {})
        signature = exercise(cls, use, namespace(vars(module), []))
    except AttemptError as failure:
        return {"error": one_line(failure.message, 300)}
    return {**signature, "test": _run_tests(Path(payload["test"]))}


def import_first(payload: dict[str, Any]) -> dict[str, Any]:
    """Import a module of the project before any other.

    Args: payload: as for `enter_project`; `module` to import.
    Returns: `{"error"}`, or `{"imported"}`, the module.
    """
    enter_project(payload)
    try:
        attempt(partial(importlib.import_module, payload["module"]), _IMPORT_SECONDS)
    except AttemptError as failure:
        return {"error": f"{payload['module']} cannot be imported then: {one_line(failure.message, 300)}"}
    return {"imported": payload["module"]}


def _run_tests(path: Path) -> int | str:
    """Run the tests of a file. Returns: the number of passed tests, or the error of one that failed."""
    try:
        module = attempt(partial(load, path.read_text(encoding="utf-8"), _SMOKE), _IMPORT_SECONDS)
        functions = [value for name, value in vars(module).items() if name.startswith("test_") and callable(value)]
        for function in functions:
            attempt(function, _SECONDS)
    except AttemptError as failure:
        return one_line(failure.message, 300)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    for _, trace in (*result.errors, *result.failures):
        return one_line(trace.strip().splitlines()[-1], 300)
    return len(functions) + result.testsRun


# --- comparison with the project's code -------------------------------------------------------------------------------


def compare_definitions(payload: dict[str, Any]) -> dict[str, Any]:
    """Compare definitions of a block's file with those of a project, and run the block.

    Args:
        payload: as for `enter_project`; `code`, `name` and `arguments` of the block; `wanted`, each with the `name` of
            a definition of its file and `options`, the `modules` of the project that define that name.

    Returns: `{"error"}` if the block does not run; else `refused`, for each wanted name and module the reason why they
        differ ("" if they do not); and the facts for a smoke test: `returns` (as in `trace_block`), `shapes` of the
        returned tensors, `trains` (it runs in train mode), `reached` (number of parameters with gradients, number of
        trainable parameters), and `differentiable` (whether any gradient arrives).
    """
    enter_project(payload)
    # TorchScript hides the text of functions, and the fast path of attention is another computation.
    torch.jit._state.disable()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        run = BlockRun(payload["code"], payload["name"], (), (), payload["arguments"], payload["companions"])
        subject = Target(run)
        facts = _run(subject)
    except AttemptError as failure:
        return {"error": failure.message}
    refused = [
        [explain_difference(subject.file, item["name"], module) for module in item["modules"]]
        for item in payload["wanted"]
    ]
    return {**facts, "refused": refused}


def explain_difference(file: ModuleType, name: str, module: str) -> str:
    """Return why a module's definition of a name is not the same as the block's, or "" if it is.

    Args:
        file: the module of the block's file.
        module: dotted name of the other module.
    """
    try:
        other = attempt(partial(importlib.import_module, module), _IMPORT_SECONDS)
    except AttemptError as failure:
        return f"cannot be imported: {one_line(failure.message, 200)}"
    return _difference(getattr(file, name), getattr(other, name, _ABSENT), _DEPTH)


def _difference(ours: object, theirs: object, depth: int) -> str:
    """Return how two classes or functions differ; "" if they do not."""
    if type(ours) is not type(theirs):
        return "is another kind of thing"
    first, second = _canonical_tree(ours), _canonical_tree(theirs)
    if first is None or second is None or ast.dump(first) != ast.dump(second):
        return "the text differs"
    before, after = (vars(sys.modules[one.__module__]) for one in (ours, theirs))
    for name in sorted({node.id for node in ast.walk(first) if isinstance(node, ast.Name)} - {_ITSELF}):
        if not _means_the_same(before.get(name, _ABSENT), after.get(name, _ABSENT), depth - 1):
            return f"{name} in it is not the same"
    return ""


def _means_the_same(ours: object, theirs: object, depth: int) -> bool:
    if ours is theirs:
        return True
    if isinstance(ours, bool | int | float | str | bytes | None | tuple):
        return type(ours) is type(theirs) and bool(ours == theirs)
    # Anything else may change while the program runs, so that equal values prove nothing.
    return isinstance(ours, type | FunctionType) and depth > 0 and not _difference(ours, theirs, depth)


def _canonical_tree(thing: Any) -> ast.stmt | None:
    """Return the syntax tree of a definition without its name, docstrings and annotations; None if there is none."""
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if not isinstance(node, ast.FunctionDef | ast.ClassDef):
        return None
    own = node.name
    for item in ast.walk(node):
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if ast.get_docstring(item, clean=False) is not None:
                item.body = item.body[1:] or [ast.Pass()]
            item.name = _ITSELF if item.name == own else item.name
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            item.returns = None
        if isinstance(item, ast.arg):
            item.annotation = None
        if isinstance(item, ast.Name) and item.id == own:
            item.id = _ITSELF
    return node


def _run(subject: Target) -> dict[str, Any]:
    """Run the block in eval and in train mode. Returns: the facts for a smoke test."""
    facts: dict[str, Any] = {"trains": True}
    for train in (False, True):
        module = subject.build()
        subject.settle(module)
        module.train(train)
        args, kwargs = subject.inputs(live=True)
        seed_all()
        try:
            output = attempt(partial(module, *args, **kwargs), _SECONDS)
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
        attempt(partial(total.backward) if live else lambda: None, _SECONDS)
    except AttemptError:
        live = []
    wanted = [one for one in module.parameters() if one.requires_grad]
    return {
        "returns": describe_structure(output),
        "shapes": [list(one.shape) for one in tensors],
        "reached": [sum(one.grad is not None for one in wanted), len(wanted)],
        "frozen": any(not one.requires_grad for one in module.parameters()),
        "differentiable": bool(live),
        "complex": any(one.is_complex() for one in tensors),
        "floating": [one.is_floating_point() and one.requires_grad for one in tensors],
    }
