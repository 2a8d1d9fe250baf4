"""A network's top-level modules in words."""

from curate.chat.facts import Child, Facts
from lemur_core.files.markdown import plural

_SHOWN = 40
_USES = {
    "called": "called in the forward pass; the size of its output depends on weights and inputs",
    "failed": "fails in the forward pass",
    "inside": "not called itself in the forward pass; modules in it are",
    "unused": "not called as a module in the forward pass",
    None: "whether it is called depends on weights and inputs",
}


def stages(facts: Facts) -> list[str]:
    """The top-level modules as items of a list, in the order of their first calls."""
    lines = [f"- {stage(child)}" for child in facts.children[:_SHOWN]]
    return [*lines, f"- and {len(facts.children) - _SHOWN} more"] if len(facts.children) > _SHOWN else lines


def stage(child: Child) -> str:
    """One top-level module in a line."""
    size = plural(child.parameters, "parameter") if child.parameters else "no parameters"
    use = f"gives {child.output}" if child.output is not None else _USES[child.use]
    return f"`{child.name}` ({child.kind}): {size}, {use}"
