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
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from extract.arguments.inputs import flatten
from extract.arguments.messages import BlockRun, BlockUses
from extract.arguments.search_guest import compile_nothing, namespace
from extract.arguments.target import Target
from extract.arguments.trials import AttemptError, attempt, seed_all
from extract.migrate.messages import (
    BlockToCompare,
    Compared,
    ImportableModule,
    InProject,
    ModuleToImport,
    ModuleToSign,
)
from extract.minimize.watch_guest import exercise
from lemur_core.sandbox.server.foreign import load, one_line
from lemur_core.sandbox.server.jobs import Failure

_SMOKE = "smoke_test"  # module name of a smoke test
_SECONDS = 60.0  # of CPU time, for one step; the sandbox sets the hard limit
_IMPORT_SECONDS = 120.0
_DEPTH = 6  # maximum length of a chain of definitions that name each other
_ABSENT = object()  # the value of a name that a module does not bind
_ITSELF = "_itself"  # replaces a definition's own name


def enter_project(project: InProject) -> None:
    """Make the project's own modules importable, with priority over others of the same names."""
    sys.dont_write_bytecode = True
    compile_nothing()
    # The sandbox has preloaded packages; a module of the project may have the name of one.
    for name in [name for name in sys.modules if name.partition(".")[0] in project.packages]:
        del sys.modules[name]
    sys.path[:0] = project.roots
    sys.path += project.folders


# --- as a module of the project ---------------------------------------------------------------------------------------


def sign_in_project(request: ModuleToSign) -> Failure | dict[str, object]:
    """Sign the results of a block as a module of the project in every known working way, and run its smoke test.

    Returns: why it cannot be imported or constructed, or the fields of `extract.migrate.project.trial.SignedInProject`.
    """
    enter_project(request)
    try:
        module = attempt(partial(importlib.import_module, request.module), _IMPORT_SECONDS)
    except AttemptError as failure:
        return Failure(f"{request.module} cannot be imported: {one_line(failure.message, 300)}")
    cls = getattr(module, request.name)
    try:
        use = BlockUses("", request.name, (), (), request.arguments, (), request.sizes, {})
        signature = exercise(cls, use, namespace(vars(module), []))
    except AttemptError as failure:
        return Failure(one_line(failure.message, 300))
    return {**signature, "test": _run_tests(Path(request.test))}


def import_first(request: ModuleToImport) -> Failure | ImportableModule:
    """Import a module of the project before any other."""
    enter_project(request)
    try:
        attempt(partial(importlib.import_module, request.module), _IMPORT_SECONDS)
    except AttemptError as failure:
        return Failure(f"{request.module} cannot be imported then: {one_line(failure.message, 300)}")
    return ImportableModule(request.module)


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


def compare_definitions(request: BlockToCompare) -> Failure | Compared:
    """Compare definitions of a block's file with those of a project, and run the block.

    Returns: why the block does not run, or how they compare.
    """
    enter_project(request)
    # TorchScript hides the text of functions, and the fast path of attention is another computation.
    torch.jit._state.disable()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        subject = Target(BlockRun(request.code, request.name, (), (), request.arguments, ()))
        compared = _run(subject)
    except AttemptError as failure:
        return Failure(failure.message)
    refused = tuple(
        tuple(explain_difference(subject.file, item["name"], module) for module in item["modules"])
        for item in request.wanted
    )
    return replace(compared, refused=refused)


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
    before, after = (vars(sys.modules[definition.__module__]) for definition in (ours, theirs))
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


def _run(subject: Target) -> Compared:
    """Run the block in train mode, or else in eval mode. Returns: the facts for a smoke test."""
    evaluated = _run_once(subject, train=False)
    try:
        return _run_once(subject, train=True)
    except AttemptError:
        return evaluated


def _run_once(subject: Target, *, train: bool) -> Compared:
    module = subject.build()
    subject.settle(module)
    module.train(train)
    args, kwargs = subject.inputs(live=False)
    seed_all()
    output = attempt(partial(module, *args, **kwargs), _SECONDS)
    tensors = flatten(output)
    live = [tensor.abs().double().sum() for tensor in tensors if tensor.requires_grad]
    try:
        attempt(partial(sum(live, start=torch.zeros(())).backward) if live else lambda: None, _SECONDS)
        learns = any(parameter.grad is not None for parameter in module.parameters())
    except AttemptError:  # it forbids a backward pass, so its smoke test has none
        learns = False
    return Compared(
        refused=(),
        single=isinstance(output, torch.Tensor),
        shapes=tuple(tuple(tensor.shape) for tensor in tensors),
        trains=train,
        learns=learns,
    )
