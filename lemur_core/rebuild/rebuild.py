"""Write a module from its graph alone: the source of one `nn.Module` that computes the same.

Related parameters become `nn` layers, the others `nn.Parameter`; each operation becomes a line. Both modes share one
text: layers and dropout handle the mode themselves, other differences go under `if self.training`.
"""

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from lemur_core.files.foreign import comment_lines
from lemur_core.graphs.formulas import Size, is_unknown, list_sizes
from lemur_core.graphs.graph import LEAVES, Argument, Graph, TensorType
from lemur_core.graphs.modes import TRAIN, ModeChoice, ModeModule, ModeStep, Value, Write, merge
from lemur_core.rebuild.layers import Layer, group_layers, values_in
from lemur_core.rebuild.operators import Operation, RebuildError, parenthesize


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The source of a module, with facts about it.

    Args:
        mapping: the original's name of each parameter and buffer, by the new name.
        takes: the indices of the inputs that `forward` takes: those it uses.
    """

    source: str
    mapping: Mapping[str, str]
    takes: tuple[int, ...] = ()


def rebuild(evaluated: Graph, trained: Graph | None = None, *, name: str = "Rebuilt", header: str = "") -> Rebuilt:
    """Write the source of a module.

    Args:
        evaluated, trained: canonical graphs of both modes; numbers that depend on the inputs are a `Size`.
        name: the name of its class.
        header: the lines at the top of the file, as comments.

    Raises: RebuildError if an operation cannot be written.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise RebuildError(f"{name!r} is not the name of a class")
    return _Writer(merge(evaluated, trained)).write_file(name, header)


class _UniqueNames:
    """Unique names that follow the original's paths: `layer1.0.conv` becomes `layer1_0_conv`."""

    def __init__(self, taken: Sequence[str]) -> None:
        self._taken = {*taken, *keyword.kwlist}

    def choose(self, path: str, otherwise: str) -> str:
        """Return an unused name for the object with this path."""
        name = re.sub(r"\W+", "_", path).strip("_") or otherwise
        name = f"m{name}" if name[0].isdigit() else name
        number, free = 1, name
        while free in self._taken:
            number += 1
            free = f"{name}_{number}"
        self._taken.add(free)
        return free


class _Writer:
    def __init__(self, module: ModeModule) -> None:
        self.module, self.steps = module, module.steps
        self.lines: list[tuple[int | None, str]] = []  # of forward, each with the only mode in which it runs
        self.texts: dict[Value, str] = {}
        self.own: dict[str, tuple[str, ModeStep]] = {}  # parameters and buffers of no layer, by the original's name
        self.attributes = _UniqueNames(dir(nn.Module()))
        self.variables = _UniqueNames(("self", "torch", "nn", "F", "torchvision"))
        self.sizes: dict[str, tuple[str, int]] = {}  # where a free size is read: an input and its dimension
        self.read_sizes: set[str] = set()
        for step in self.steps:
            if step.node.op == "custom_gradient":  # written with the gradient of its forward; the proof decides
                step.arguments = {"input": step.arguments.get("input")}
        self._take_inputs()
        self._take_layers()

    def _take_inputs(self) -> None:
        steps = [(step.node.get("number"), index) for index, step in enumerate(self.steps) if step.node.op == "input"]
        self.inputs: dict[int, str] = {}
        for number, index in sorted(steps):
            node = self.steps[index].node
            name = self.variables.choose(node.scope.replace("*", "x"), "x")
            self.inputs[number], self.texts[Value(index)] = name, name
            for dim, size in enumerate(node.outputs[0].shape):
                if isinstance(size, Size):
                    self.sizes.setdefault(size.text, (name, dim))
        self.device = f"{next(iter(self.inputs.values()))}.device" if self.inputs else '"cpu"'
        self.size_names = {size: self.variables.choose(size, "N") for size in self.sizes}

    def _take_layers(self) -> None:
        """Find the layers, the writes that no layer does itself, and the steps that lead to a result."""
        layers = group_layers(self.module, self._find_live(self.module.writes, {}))
        done = {name for layer in layers for name in (*layer.state.values(), layer.counter)}
        self.writes = [write for write in self.module.writes if self.steps[write[0].index].node.scope not in done]
        self.layers = {index: layer for layer in layers for index in layer.steps}
        self.live = sorted(self._find_live(self.writes, self.layers))
        self.layers = {index: self.layers[index] for index in self.live if index in self.layers}
        self.held: dict[str, str] = {}  # what belongs to a layer: how it is read, by the original's name
        for layer in self._list_layers():
            path = next(iter(layer.state.values())).rpartition(".")[0]
            op = self.steps[layer.steps[0]].node.op
            layer.name = self.attributes.choose(path, op.removesuffix("olution"))
            self.held |= {old: f"self.{layer.name}.{name}" for name, old in layer.state.items()}

    def _list_layers(self) -> list[Layer]:
        return list({id(layer): layer for layer in self.layers.values()}.values())

    def _find_live(self, writes: Sequence[Write], layers: Mapping[int, Layer]) -> set[int]:
        """Return the steps that lead to an output, or to one of these writes."""
        wanted = {value.index for value in values_in(tuple(self.module.outputs))}
        wanted |= {value.index for target, written, _ in writes for value in values_in((target, written))}
        for index in range(len(self.steps) - 1, -1, -1):
            if index in wanted:
                wanted |= {value.index for value in self._list_read(index, layers)}
        return wanted

    def _list_read(self, index: int, layers: Mapping[int, Layer]) -> list[Value]:
        """Return the values that a step reads, except those that a layer holds."""
        arguments = self.steps[index].arguments
        if index in layers:
            return values_in(_read_input(arguments))
        return values_in(tuple(arguments.values()))

    # --- forward ------------------------------------------------------------------------------------------------------

    def _write_forward(self) -> None:
        """Write the lines of `forward`."""
        results = values_in(tuple(self.module.outputs))
        results += [value for _, written, _ in self.writes for value in values_in(written)]
        self.used = {*results, *(value for index in self.live for value in self._list_read(index, self.layers))}
        for index in self.live:
            step = self.steps[index]
            if step.node.op not in LEAVES - {"constant"}:
                text, count = self._write_expression(index)
                values = [Value(index, output) for output in range(count)]
                number = len(self.lines) + 1
                names = [self.variables.choose(f"h{number}", "h") if value in self.used else "_" for value in values]
                self.texts |= zip(values, names, strict=True)
                self.lines.append((step.mode, f"{', '.join(names)} = {text}"))
        returned = ", ".join(self._write_argument(value) for value in self.module.outputs)
        for target, written, mode in self.writes:
            copied = f"    {self._write_argument(target)}.copy_({self._write_argument(written)})"
            self.lines += [(mode, "with torch.no_grad():"), (mode, copied)]
        self.lines.append((None, f"return {returned}"))

    def _write_expression(self, index: int) -> tuple[str, int]:
        """Return the expression of a step, and the number of its results."""
        step, layer = self.steps[index], self.layers.get(index)
        node, arguments = step.node, dict(step.arguments)
        if layer is not None:
            return f"self.{layer.name}({self._write_argument(_read_input(arguments))})", 1
        arguments.pop("draw", None)
        if step.skipped is not None:
            arguments["train"] = ModeChoice(False, True)
        if node.op == "reshape":
            arguments["shape"] = self._infer_unknown(arguments["shape"])
        text = Operation(node, arguments, self._write_argument, self._type_of, self.device).expression()
        # Further results of a norm are its updated statistics.
        count = 1 if node.op in ("batch_norm", "instance_norm") else len(node.outputs)
        if count > 1 and not any(Value(index, output) in self.used for output in range(1, count)):
            return f"{text}[0]", 1
        return text, count

    def _type_of(self, value: Value) -> TensorType:
        value = getattr(value, "train", value)
        return self.steps[value.index].node.outputs[value.output]

    # --- arguments ----------------------------------------------------------------------------------------------------

    def _write_argument(self, value: Argument) -> str:
        """Write a tensor or a literal."""
        if isinstance(value, Value):
            return self.texts[value] if value in self.texts else self._write_leaf(self.steps[value.index])
        if isinstance(value, ModeChoice):
            if value.eval is False and value.train is True:
                return "self.training"
            one, other = (parenthesize(self._write_argument(item)) for item in (value.train, value.eval))
            return f"{one} if self.training else {other}"
        if isinstance(value, Size):
            return self._write_size(value)
        if type(value) is tuple:
            items = ", ".join(self._write_argument(item) for item in value)
            return f"({items}{',' * (len(value) == 1)})"
        if isinstance(value, float) and value - value != 0:
            return f'float("{value}")'
        return repr(value)

    def _write_leaf(self, step: ModeStep) -> str:
        if step.node.op not in ("parameter", "buffer"):
            raise RebuildError(f"{step.node.op} outside of where it has a meaning")
        old = step.node.scope
        if old in self.held:
            return self.held[old]
        if old not in self.own:
            self.own[old] = (self.attributes.choose(old, "weight"), step)
        return f"self.{self.own[old][0]}"

    def _write_size(self, size: Size) -> str:
        names = {size.text} if size.text in self.sizes else list_sizes(size.text)
        if not names <= self.sizes.keys():  # a number without a formula: that of the first run
            return repr(int(size.value) if size.value == int(size.value) else size.value)
        self.read_sizes |= names
        known = size.text in self.sizes
        return self.size_names[size.text] if known else re.sub(r"[A-Z]\w*", lambda n: self.size_names[n[0]], size.text)

    def _infer_unknown(self, shape: tuple[Argument, ...]) -> tuple[Argument, ...]:
        """Return a shape with -1 for the only size that has no formula."""
        unknown = [size for size in shape if isinstance(size, Size) and any(map(is_unknown, list_sizes(size.text)))]
        return tuple(-1 if size in unknown and len(unknown) == 1 and 0 not in shape else size for size in shape)

    # --- the file -----------------------------------------------------------------------------------------------------

    def write_file(self, name: str, header: str) -> Rebuilt:
        """Write the whole file."""
        self._write_forward()
        mapping: dict[str, str] = {}
        init: list[str] = []
        frozen = {
            step.node.scope for step in self.steps if step.node.op == "parameter" and not step.node.get("trained")
        }
        written = {step.node.scope for step in self.steps}
        for layer in self._list_layers():
            init.append(f"self.{layer.name} = {layer.text}")
            init += [
                f"self.{layer.name}.{own}.requires_grad = False" for own, old in layer.state.items() if old in frozen
            ]
            mapping |= {f"{layer.name}.{own}": old for own, old in layer.state.items()}
            if layer.counter in written:
                mapping[f"{layer.name}.num_batches_tracked"] = layer.counter or ""
        for old, (own, step) in self.own.items():
            init.append(_register(own, step, trained=old not in frozen))
            mapping[own] = old
        if init:
            init = ["def __init__(self):", "    super().__init__()", *(f"    {line}" for line in init), ""]
        forward = [f"def forward({', '.join(['self', *self.inputs.values()])}):", *self._list_lines()]
        body = "\n".join(f"    {line}" if line else "" for line in [*init, *forward])
        imports = [
            *(["import torch"] if re.search(r"\btorch\.", body) else []),
            *(["import torchvision"] if "torch.ops.torchvision." in body else []),  # registers its operators
            "from torch import nn",
            *(["from torch.nn import functional as F"] if re.search(r"\bF\.", body) else []),
        ]
        head = "\n".join([*comment_lines(header.splitlines()), *imports])
        source = f"{head}\n\n\nclass {name}(nn.Module):\n{body}\n{_write_renaming(mapping)}"
        return Rebuilt(source, mapping, tuple(self.inputs))

    def _list_sizes(self) -> list[str]:
        """Return the lines that read the sizes of inputs."""
        ranks = {
            self.inputs[step.node.get("number")]: len(step.node.outputs[0].shape)
            for step in self.steps
            if step.node.op == "input"
        }
        lines = []
        for name, rank in ranks.items():
            places = {dim: self.size_names[size] for size, (of, dim) in self.sizes.items() if of == name}
            read = {dim for size, (of, dim) in self.sizes.items() if of == name and size in self.read_sizes}
            if len(read) == 1:
                dim = min(read)
                lines.append(f"    {places[dim]} = {name}.shape[{dim}]")
            elif read:
                names = ", ".join(places[dim] if dim in read else "_" for dim in range(rank))
                lines.append(f"    {names} = {name}.shape")
        return lines

    def _list_lines(self) -> list[str]:
        """Return the lines of `forward` with those that read sizes; those of one mode stand below its condition."""
        lines = self._list_sizes()
        before: int | None = None
        for mode, line in self.lines:
            if mode is not None and mode != before:
                lines.append(f"    if {'' if mode == TRAIN else 'not '}self.training:")
            lines.append(f"    {line}" if mode is None else f"        {line}")
            before = mode
        return lines


def _read_input(arguments: Mapping[str, Argument]) -> Argument:
    """Return the argument that a layer takes."""
    return arguments["indices" if "indices" in arguments else "input"]


def _register(name: str, step: ModeStep, *, trained: bool) -> str:
    """Write a parameter or buffer that belongs to no layer."""
    dtype, shape = step.node.outputs[0]
    zeros = f"torch.zeros({shape}{'' if dtype == 'float32' else f', dtype=torch.{dtype}'})"
    if step.node.op == "buffer":
        return f'self.register_buffer("{name}", {zeros})'
    return f"self.{name} = nn.Parameter({zeros}{'' if trained else ', requires_grad=False'})"


def _write_renaming(mapping: Mapping[str, str]) -> str:
    """Write the function that renames the original's state to the names used here, if they differ."""
    if all(new == old for new, old in mapping.items()):
        return ""
    pairs = "".join(f'        "{new}": "{old}",\n' for new, old in mapping.items())
    return (
        '\n\ndef renamed(state):\n    """The original\'s state dict under the names of this module."""\n'
        f"    names = {{\n{pairs}    }}\n    return {{new: state[old] for new, old in names.items()}}\n"
    )
