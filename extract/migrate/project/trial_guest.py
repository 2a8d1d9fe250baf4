"""Sandbox guest: run a block alone, and as a module of a project with its smoke test."""

import importlib
import sys
import unittest
from functools import partial
from pathlib import Path

import torch

from extract.arguments.messages import BlockRun, BlockUses
from extract.arguments.search_guest import disable_denied, namespace
from extract.arguments.target import Target
from extract.arguments.trials import AttemptError, attempt, seed_all
from extract.arguments.values.inputs import flatten
from extract.migrate.messages import ModuleToSign, SeenBlock
from extract.minimize.watch_guest import exercise
from lemur_core.sandbox.loader import load
from lemur_core.sandbox.server.foreign import one_line
from lemur_core.sandbox.server.jobs import Failure

_SMOKE = "smoke_test"  # module name of a smoke test
_SECONDS = 60.0  # of CPU time, for one step; the sandbox sets the hard limit
_IMPORT_SECONDS = 120.0


def sign_in_project(request: ModuleToSign) -> Failure | dict[str, object]:
    """Sign the results of a block as a module of the project in every known working way, and run its smoke test.

    Returns: why it cannot be imported or constructed, or the fields of `extract.migrate.project.trial.SignedInProject`.
    """
    sys.dont_write_bytecode = True
    disable_denied()
    # The sandbox has preloaded packages; a module of the project may have the name of one.
    for name in [name for name in sys.modules if name.partition(".")[0] in request.packages]:
        del sys.modules[name]
    sys.path[:0] = request.roots
    sys.path += request.folders
    try:
        module = attempt(partial(importlib.import_module, request.module), _IMPORT_SECONDS)
    except AttemptError as failure:
        return Failure(f"{request.module} cannot be imported: {one_line(failure.message, 300)}")
    cls = getattr(module, request.name)
    try:
        use = BlockUses("", request.name, (), (), request.arguments, (), request.sizes, {}, backward=True)
        signature = exercise(cls, use, namespace(vars(module), []))
    except AttemptError as failure:
        return Failure(one_line(failure.message, 300))
    return {**signature, "test": _run_tests(Path(request.test))}


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


def observe_block(request: BlockRun) -> Failure | SeenBlock:
    """Run a block in train mode, or else in eval mode. Returns: why it does not run, or the facts for a smoke test."""
    disable_denied()
    try:
        return _observe(Target(request))
    except AttemptError as failure:
        return Failure(failure.message)


def _observe(subject: Target) -> SeenBlock:
    evaluated = _run_once(subject, train=False)
    try:
        return _run_once(subject, train=True)
    except AttemptError:
        return evaluated


def _run_once(subject: Target, *, train: bool) -> SeenBlock:
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
    return SeenBlock(
        single=isinstance(output, torch.Tensor),
        shapes=tuple(tuple(tensor.shape) for tensor in tensors),
        trains=train,
        learns=learns,
    )
