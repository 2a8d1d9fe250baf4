"""The arguments that a network is run with: those of its record, and the usual ones where it states none."""

import ast
import json
import re
import warnings
from collections.abc import Iterable, Mapping

from lemur_core.files import Json
from lemur_core.files.markdown import plural
from lemur_core.sandbox.server.received import receive
from manifests.records import drop_outcomes

#: What a network is run with whose record states none: the dataset of its task, and the hyperparameters that LEMUR's
#: trainer passes, at their most frequent values.
DEFAULT_TASK = "img-classification"
TASK_DATASETS = {
    DEFAULT_TASK: "cifar-10",
    "img-segmentation": "coco",
    "obj-detection": "coco",
    "img-captioning": "coco",
    "txt-image": "coco",
    "txt-generation": "wikitext",
}
PRM: Json = {"lr": 0.01, "momentum": 0.9, "dropout": 0.2, "epoch": 1, "transform": "norm_256"}
_NET = re.compile(r"^(?:class|def)\s+Net\b|^Net\s*=", re.MULTILINE)


def read_parameters(prm: str | None) -> Json:
    """Return the hyperparameters of a record, cleaned as `receive` does; empty unless `prm` is a JSON object.

    The outcomes that an older snapshot may still have in `prm` are no hyperparameters.
    """
    try:
        parameters = receive(json.loads(prm or ""), any_number=True)
    except (ValueError, RecursionError):
        return {}
    return drop_outcomes(parameters) if isinstance(parameters, dict) else {}


def complete(record: Mapping[str, str | None], code: str) -> tuple[str | None, str | None, Json]:
    """Return the task, dataset and hyperparameters that a network is run with: its record's, else the usual ones.

    Args: record: `task`, `dataset` and `prm`, each a text or None.
    Returns: no task if the record states none and the code defines no Net, as LEMUR's contract demands.
    """
    task, dataset, prm = record["task"], record["dataset"], read_parameters(record["prm"])
    if None not in (task, dataset, record["prm"]) or (task is None and not _NET.search(code)):
        return task, dataset, prm
    task = task or DEFAULT_TASK
    return task, dataset or TASK_DATASETS.get(task), PRM | prm


#: The names that code without imports can use, by namespace: a line of Python.
NAMESPACES = {
    "torch": "import math, numpy as np, torch, torch.nn as nn, torch.nn.functional as F, torch.optim as optim;"
    " from torch import Tensor"
}


def imports_nothing(code: str) -> bool:
    """Return whether a code that parses has no import statement."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes
        try:
            return not any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(ast.parse(code)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False


def place_in(code: str, namespace: str | None) -> str:
    """Return a code as it is run: one without imports is below the line of the namespace, if one is chosen."""
    return f"{NAMESPACES[namespace]}\n{code}" if namespace is not None and imports_nothing(code) else code


def describe_assumptions(
    traced: Iterable[tuple[Mapping[str, str | None], str, str | None]], namespace: str | None
) -> list[str]:
    """Return the assumptions about traced networks, one sentence each; empty if nothing was assumed.

    Args: traced: the record and the code of each network, and why it has no graph, or None.
    """
    usual = without_imports = 0
    for record, code, error in traced:
        usual += error is None and None in (record["task"], record["dataset"], record["prm"])
        if namespace is not None or (error or "").startswith("import_failed"):
            without_imports += imports_nothing(code)
    notes = []
    if usual:
        values = ", ".join(f"{name} {value}" for name, value in PRM.items())
        notes.append(
            f"{plural(usual, 'kept network')} without a stated task, data set or hyperparameters, traced with the usual"
            f" ones: {DEFAULT_TASK} on {TASK_DATASETS[DEFAULT_TASK]}, {values}"
        )
    if without_imports and namespace is not None:
        notes.append(
            f"{plural(without_imports, 'kept code')} without imports, run below the line of --namespace {namespace}:"
            f" {NAMESPACES[namespace]}"
        )
    elif without_imports:
        what = "that imports nothing does" if without_imports == 1 else "that import nothing do"
        names = ", ".join(NAMESPACES)
        notes.append(f"{plural(without_imports, 'kept code')} {what} not run; --namespace {names} runs such codes")
    return notes
