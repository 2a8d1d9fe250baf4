"""What a network's syntax tree says without running it."""

import ast
import re
from dataclasses import dataclass

from curate.chat.text import Source

#: Of torch.optim.
OPTIMIZERS = frozenset(
    {"Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "LBFGS", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"}
)
#: Left in files by those who made them: a result as an annotation, and what an extraction did not find.
_RESIDUE = re.compile(r"^(?:addon_accuracy:|# UNRESOLVED DEPENDENCIES).*$", re.MULTILINE)
_LOSS_FUNCTIONS = frozenset({"cross_entropy", "nll_loss", "mse_loss", "binary_cross_entropy_with_logits"})


@dataclass(frozen=True, slots=True)
class Reading:
    """Names and literals of a file. `hyperparameters` is None where no function states them as a literal."""

    has_net: bool
    hyperparameters: tuple[str, ...] | None
    optimizers: tuple[str, ...]
    losses: tuple[str, ...]
    methods: tuple[str, ...]  # of Net, in order
    residue: str | None  # a line that is no part of the network, but what a source noted in its file


def read_code(source: Source) -> Reading:
    """Read a file."""
    names = {_last(node.func) for node in source.nodes if isinstance(node, ast.Call)} - {""}
    classes = [node for node in source.tree.body if isinstance(node, ast.ClassDef)]
    net = next((node for node in reversed(classes) if node.name == "Net"), None)
    return Reading(
        has_net=net is not None,
        hyperparameters=_hyperparameters(source.tree),
        optimizers=tuple(sorted(names & OPTIMIZERS)),
        losses=tuple(sorted(name for name in names if name.endswith("Loss") or name in _LOSS_FUNCTIONS)),
        residue=found[0].strip() if (found := _RESIDUE.search(source.text)) else None,
        methods=tuple(item.name for item in net.body if isinstance(item, ast.FunctionDef)) if net else (),
    )


def _hyperparameters(tree: ast.Module) -> tuple[str, ...] | None:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "supported_hyperparameters":
            returned = [item.value for item in ast.walk(node) if isinstance(item, ast.Return) and item.value]
            try:
                names = ast.literal_eval(returned[0]) if len(returned) == 1 else None
            except ValueError:
                return None
            if isinstance(names, set | list | tuple | dict) and all(isinstance(name, str) for name in names):
                return tuple(sorted(names))
    return None


def _last(node: ast.expr) -> str:
    """The last name of `a.b.c`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
