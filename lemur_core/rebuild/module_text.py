"""Assemble the file of a rebuilt module: header, layers, parameters, `forward`, and the mapping of its state."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lemur_core.files.python import comment_lines
from lemur_core.graphs.modes import TRAIN, ModeModule, ModeStep
from lemur_core.rebuild.calls import UNKNOWN
from lemur_core.rebuild.layers import Layer


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The source of a module, with facts about it.

    Args:
        mapping: the original's name of each parameter and buffer, by the new name.
        fixed: sizes that depend on the inputs without a known formula; they keep the values of the first run.
        takes: the indices of the inputs that `forward` takes: those it uses.
    """

    source: str
    mapping: Mapping[str, str]
    fixed: tuple[str, ...] = ()
    takes: tuple[int, ...] = ()


@dataclass(slots=True)
class ModuleSource:
    """The parts of a module's source.

    Args:
        module: the steps that `forward` computes.
        input_names: the names of the tensors that `forward` takes, by index.
        lines: of `forward`, each with the only mode in which it runs, or None.
        layers: those that the lines call.
        own: parameters and buffers that belong to no layer: new name and step, by the old name.
        functions: names of functions with custom gradients, by their text.
        sizes: where free sizes are read: input and dimension, by size.
        unknown: numbers without a formula, as marked in the lines.
    """

    module: ModeModule
    name: str
    input_names: Mapping[int, str]
    lines: list[tuple[int | None, str]] = field(default_factory=list)
    layers: Sequence[Layer] = ()
    own: dict[str, tuple[str, ModeStep]] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, tuple[str, int]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def file(self, header: str) -> Rebuilt:
        """Write the whole file. Args: header: the lines at its top, as comments."""
        mapping: dict[str, str] = {}
        lines: list[str] = []
        for layer in self.layers:
            lines.append(f"self.{layer.name} = {layer.text}")
            mapping |= {f"{layer.name}.{name}": old for name, old in layer.state.items()}
            if layer.counter and any(step.node.scope == layer.counter for step in self.module.steps):
                mapping[f"{layer.name}.num_batches_tracked"] = layer.counter
            lines += [f"self.{layer.name}.{name}.requires_grad = False" for name in layer.frozen]
        for old, (name, step) in self.own.items():
            lines.append(_register(name, step))
            mapping[name] = old
        forward = self.body()
        functions = "".join(f"class {name}{text}\n\n\n" for text, name in self.functions.items())
        init = ["    def __init__(self):", "        super().__init__()", *(f"        {line}" for line in lines), ""]
        takes = "".join(f", {name}" for name in self.input_names.values())
        parts = [*(init if lines else []), f"    def forward(self{takes}):", forward, ""]
        text = f"{functions}class {self.name}(nn.Module):\n" + "\n".join(parts)
        imports = ["import torch"] if re.search(r"\btorch\.", f"{header}\n{text}") else []
        imports += ["import torchvision"] if "torchvision.ops." in forward else []
        imports += ["from torch import nn"]
        imports += ["from torch.nn import functional as F"] if re.search(r"\bF\.", functions + forward) else []
        source = "\n".join([*comment_lines(header.splitlines()), *imports, "", "", text])
        marked = f"{UNKNOWN}(\\d+){UNKNOWN}"
        fixed = [self.unknown[int(number)] for number in re.findall(marked, source)]
        source = re.sub(marked, "", source) + _write_renaming(mapping)
        return Rebuilt(source, mapping, tuple(dict.fromkeys(fixed)), tuple(self.input_names))

    def body(self) -> str:
        """Write the lines of `forward`, after the lines that name sizes."""
        out: list[str] = []
        opened = ""  # the condition of the branch that the line before is in
        before: int | None = None
        for mode, line in self.lines:
            if mode is None:
                opened = ""
            elif before != mode or not opened:
                condition = "if self.training:" if mode == TRAIN else "if not self.training:"
                opened = "else:" if opened and opened != "else:" else condition
                out.append(f"        {opened}")
            out.append(f"        {line}" if mode is None else f"            {line}")
            before = mode
        return self._with_sizes("\n".join(out))

    def _with_sizes(self, body: str) -> str:
        """Name the input sizes that are used, in one line per input."""
        lines = []
        for name in self.input_names.values():
            used = sorted({int(dim) for dim in re.findall(rf"\b{re.escape(name)}\.shape\[(\d+)\]", body)})
            if not used:
                continue
            steps = (step for step in self.module.steps if step.node.op == "input")
            rank = next(
                len(step.node.outputs[0].shape) for step in steps if self.input_names[step.node.get("number")] == name
            )
            places = {dim: size for size, (of, dim) in self.sizes.items() if of == name}
            texts = [places.get(dim, f"N{dim}") for dim in range(rank)]
            names = [text if text.isidentifier() else f"N{dim}" for dim, text in enumerate(texts)]
            names = [f"{text}_" if text in self.input_names.values() else text for text in names]
            for dim in used:
                body = body.replace(f"{name}.shape[{dim}]", names[dim])
            if len(used) == 1 and rank > 1:
                lines.append(f"        {names[used[0]]} = {name}.shape[{used[0]}]")
            else:
                comma = "," if rank == 1 else ""
                targets = ", ".join(text if dim in used else "_" for dim, text in enumerate(names))
                lines.append(f"        {targets}{comma} = {name}.shape")
        return "\n".join([*lines, body])


def _register(name: str, step: ModeStep) -> str:
    """Write a parameter or buffer that belongs to no layer."""
    kind = step.node.outputs[0]
    shape = ", ".join(map(str, kind.shape)) if kind.shape else "()"
    dtype = "" if kind.dtype == "float32" else f", dtype=torch.{kind.dtype}"
    if step.node.op == "buffer":
        return f'self.register_buffer("{name}", torch.zeros({shape}{dtype}))'
    frozen = "" if step.node.get("trained") else ", requires_grad=False"
    return f"self.{name} = nn.Parameter(torch.zeros({shape}{dtype}){frozen})"


def _write_renaming(mapping: Mapping[str, str]) -> str:
    """Write the function that renames the original's state to the names used here."""
    plain = {new.replace(".", "_"): new for new in mapping}
    odd = {new: old for new, old in mapping.items() if old.replace(".", "_") != new.replace(".", "_")}
    if len(plain) < len(mapping) or len({old.replace(".", "_") for old in mapping.values()}) < len(mapping):
        odd = dict(mapping)
    if all(new == old for new, old in mapping.items()):
        return ""
    lines = ["", "", "def renamed(state, module):"]
    lines.append('    """The original\'s state dict under the names of this module."""')
    lines.append('    plain = {name.replace(".", "_"): value for name, value in state.items()}')
    if odd:
        pairs = textwrap.wrap(", ".join(f'"{new}": "{old}"' for new, old in odd.items()), 104)
        lines += ["    odd = {", *(f"        {pair}" for pair in pairs), "    }"]
        lines.append('    plain |= {new.replace(".", "_"): state[old] for new, old in odd.items()}')
    lines.append("    own = module.state_dict().items()")
    lines.append('    return {name: plain.get(name.replace(".", "_"), value) for name, value in own}')
    return "\n".join(lines) + "\n"
