"""Write a module from its graph alone: the source of one `nn.Module` that computes the same.

Related parameters become `nn` layers, the others `nn.Parameter`; operations become expressions, written inline if their
value is used only once. Eval and train mode share one text: layers and dropout handle the mode themselves, other
differences go under `if self.training`.
"""

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lemur_core.graphs.graph import LEAVES, Argument, Graph, TensorType
from lemur_core.graphs.modes import EVAL, TRAIN, ModeChoice, ModeStep, Value, Write, merge
from lemur_core.graphs.symbolic import Size, list_sizes
from lemur_core.rebuild import expressions  # noqa: F401 (importing it registers its operations)
from lemur_core.rebuild.calls import ATOM, CHOICE, UNKNOWN, Operation, RebuildError, Text, expression, function
from lemur_core.rebuild.functions import OP, Custom, find_custom
from lemur_core.rebuild.layers import Layer, UniqueNames, group_layers, values_in
from lemur_core.rebuild.module_text import ModuleSource, Rebuilt

_WIDTH = 110  # maximum width of a line of `forward`, without indentation and assignment
_INLINE = 70  # maximum width of an inline expression
_VARIABLES = (*"yzuvwstpqr", *(f"h{number}" for number in range(1, 10_000)))
_END = -2  # the reader of a value that no step reads: an output, or a write
#: Attributes of modules that a layer or parameter would hide.
_RESERVED = (
    "forward", "training", "train", "eval", "half", "float", "double", "type", "to", "cuda", "cpu", "apply",
    "children", "modules", "parameters", "buffers", "load", "compile", "register_buffer", "zero_grad",
)  # fmt: skip


def rebuild(
    evaluated: Graph,
    trained: Graph | None = None,
    *,
    name: str = "Rebuilt",
    inputs: Mapping[int, str] | None = None,
    header: str = "",
) -> Rebuilt:
    """Write the source of a module.

    Args:
        evaluated, trained: canonical graphs of both modes; numbers that depend on the inputs are a `Size`.
        name: the name of its class.
        inputs: names for the arguments of `forward`, by index; None: as in the graphs.
        header: the lines at the top of the file, as comments.

    Returns: the source, and which parameter or buffer of the original each of its own stands for.
    Raises: RebuildError if an operation cannot be written.
    """
    if not name.isidentifier():
        raise RebuildError(f"{name!r} is not the name of a class")
    module = merge(evaluated, trained)
    writer = _ModuleWriter(module, name, input_names(module.steps) if inputs is None else inputs)
    writer.write_lines()
    return writer.file(header)


def input_names(steps: Sequence[ModeStep]) -> dict[int, str]:
    """Name each used input, by its index: `x` for `x`, `x_0` for `x.0`."""
    names = UniqueNames((*keyword.kwlist, "self", "torch", "nn", "F", "torchvision"))
    scopes = {step.node.get("number"): step.node.scope for step in steps if step.node.op == "input"}
    return {number: names.of(scope.replace("*", "x"), "x") for number, scope in sorted(scopes.items())}


@dataclass(slots=True)
class _Pending:
    """An expression that is written inline where its value is used."""

    text: Text
    holds: list[Value]
    moves: bool  # whether its order matters: it draws random numbers, or changes a layer that is called again
    call: Operation | None = None


@dataclass(slots=True)
class _ModuleWriter(ModuleSource):
    texts: dict[Value, Text] = field(default_factory=dict)
    pending: dict[Value, _Pending] = field(default_factory=dict)
    uses: dict[Value, int] = field(default_factory=dict)
    users: dict[Value, list[int]] = field(default_factory=dict)
    owners: dict[str, Value] = field(default_factory=dict)
    calls: dict[int, Layer] = field(default_factory=dict)
    names: UniqueNames = field(default_factory=lambda: UniqueNames(_RESERVED))
    like: Text | None = None
    like_dtype: str = ""
    results: list[Text] = field(default_factory=list)
    customs: dict[int, Custom] = field(default_factory=dict)
    index: int = 0
    next_place: int = 0

    def write_lines(self) -> None:
        """Write all lines, and collect the layers that they call."""
        for index, step in enumerate(self.module.steps):
            if step.node.op == OP:
                self._take_custom(index)
        self.calls, layers = group_layers(self.module, self._find_live(self.module.writes))
        # The writes that no layer does itself.
        done = {name for layer in layers for name in (*layer.state.values(), layer.counter)}
        writes = [w for w in self.module.writes if self.module.steps[w[0].index].node.scope not in done]
        live = self._find_live(writes)
        self.calls = {index: layer for index, layer in self.calls.items() if index in live}
        self.layers = [layer for layer in layers if any(index in live for index in layer.steps)]
        for layer in self.layers:
            self._name(layer)
        reads = [(value, index) for index in sorted(live) for value in self._read(index)]
        reads += [(value, _END) for value in values_in(tuple(self.module.outputs))]
        reads += [(value, _END) for _, written, _ in writes for value in values_in(written)]
        for value, index in reads:
            self.uses[value] = self.uses.get(value, 0) + 1
            self.users.setdefault(value, []).append(index)
        self._inputs(live)
        computing = ((index, self.module.steps[index].node.op) for index in sorted(live))
        steps = [index for index, op in computing if op not in LEAVES or op == "constant"]
        for turn, index in enumerate(steps):
            self.next_place = steps[turn + 1] if turn + 1 < len(steps) else -1
            self._step(index)
        written = [(target, self._text(value), mode) for target, value, mode in writes]
        self.results = [self._text(value) for value in self.module.outputs]
        for target, text, mode in written:
            leaf = self.module.steps[target.index]
            self.lines += [(mode, "with torch.no_grad():"), (mode, f"    {self._leaf(leaf).text}.copy_({text.text})")]
        self.lines.append((None, f"return {', '.join(text.text for text in self.results)}"))

    # --- what is needed -------------------------------------------------------------------------------------------

    def _find_live(self, writes: Sequence[Write]) -> set[int]:
        """Return the steps that lead to an output, or to one of these writes."""
        wanted = {value.index for value in values_in(tuple(self.module.outputs))}
        for target, value, _ in writes:
            wanted |= {leaf.index for leaf in values_in((target, value))}
        for index in range(len(self.module.steps) - 1, -1, -1):
            if index in wanted:
                wanted |= {value.index for value in self._read(index)}
        return wanted

    def _read(self, index: int) -> list[Value]:
        """Return the values that a step reads, except those that a layer holds."""
        step, layer = self.module.steps[index], self.calls.get(index)
        if index in self.customs:
            return list(self.customs[index].takes)
        names = layer.inputs if layer else tuple(step.arguments)
        if layer and "hx" in names and not self._state(step):
            names = tuple(name for name in names if name != "hx")
        return [value for name in names for value in values_in(step.arguments.get(name))]

    def _name(self, layer: Layer) -> None:
        first = next(iter(layer.state.values()), "")
        node = self.module.steps[layer.steps[0]].node
        path = first.rpartition(".")[0]
        layer.name = self.names.of(path or "", path or node.op.removesuffix("olution"))
        scopes = {step.node.scope: step.node for step in self.module.steps if step.node.op == "parameter"}
        layer.frozen = tuple(
            name for name, old in layer.state.items() if old in scopes and not scopes[old].get("trained")
        )

    def _inputs(self, live: set[int]) -> None:
        for index, step in enumerate(self.module.steps):
            if step.node.op != "input":
                continue
            number = step.node.get("number")
            name, value = self.input_names[number], Value(index)
            self.texts[value] = Text(name, ATOM)
            if index in live:
                self.owners[name] = value
            kind = step.node.outputs[0]
            if self.like is None:
                self.like, self.like_dtype = Text(name, ATOM), kind.dtype
                self.uses[value] = self.uses.get(value, 0) + 1_000_000  # keep it, for its device
            for dim, size in enumerate(kind.shape):
                if isinstance(size, Size):
                    self.sizes.setdefault(size.text, (name, dim))

    # --- one operation --------------------------------------------------------------------------------------------

    def _step(self, index: int) -> None:
        self.index = index
        step = self.module.steps[index]
        if any(isinstance(value, ModeChoice) for value in step.arguments.values()) and index not in self.calls:
            self._settle(step)
        while True:
            # Too long a line: give its longest part a variable, and write it again.
            text, call = self._write(index, step)
            inlined = [value for value in self._read(index) if value in self.pending]
            if len(text.text) <= _WIDTH or not inlined:
                break
            self._assign(max(inlined, key=lambda value: len(self.pending[value].text.text)))
        read = self._read(index)
        holds = self._find_held(read)
        layer = self.calls.get(index)
        moves = "draw" in dict(step.node.arguments) or (layer is not None and len(layer.steps) > 1)
        moves |= any(self.pending[value].moves for value in read if value in self.pending)
        for value in read:
            self.pending.pop(value, None)
        value = Value(index, 0)
        several = self._count_outputs(step)
        if several > 1:
            self._unpack(step, several, text, holds)
            return
        self.pending[value] = _Pending(text, holds, moves, call)
        users = self.users.get(value, [])
        returned = self.module.outputs == [value] and self.uses[value] == 1 and self.next_place == -1
        short = len(text.text) <= _INLINE and self.uses.get(value, 0) == 1 and users[0] != _END
        # Where the order matters, only the very next step may write it inline: another one would run in between.
        too_early = moves and users != [self.next_place] and not returned
        if not (short or returned) or too_early or (step.mode is not None and users[:1] == [_END]):
            self._assign(value)

    def _count_outputs(self, step: ModeStep) -> int:
        """Return how many outputs the Python expression has."""
        if step.node.op in ("batch_norm", "instance_norm"):
            # Further outputs are the updated statistics, which the layer keeps itself.
            return 1
        if not step.node.op.startswith(("max_pool", "adaptive_max", "fractional_max")):
            return len(step.node.outputs)
        # The indices are returned on request alone.
        used = (output for output in range(len(step.node.outputs)) if Value(self.index, output) in self.uses)
        return max(used, default=0) + 1

    def _unpack(self, step: ModeStep, several: int, text: Text, holds: list[Value]) -> None:
        taken = self._release(holds)
        values = [Value(self.index, output) for output in range(several)]
        names = [self._variable(value, taken) if value in self.uses else "_" for value in values]
        left = ", ".join(names)
        if step.node.op == "lstm" and self.index in self.calls:
            # A layer returns the two states of an LSTM as one tuple.
            left = f"{names[0]}, ({names[1]}, {names[2]})" if {*names[1:]} != {"_"} else f"{names[0]}, _"
        self.lines.append((step.mode, f"{left} = {text.text}"))

    def _write(self, index: int, step: ModeStep) -> tuple[Text, Operation | None]:
        layer = self.calls.get(index)
        if index in self.customs:
            custom = self.customs[index]
            arguments = [self._text(argument).text for argument in custom.takes]
            return function(f"{self._custom(custom)}.apply", *arguments), None
        if layer is None:
            call = self._call(step)
            return expression(call), call
        arguments = [self._text(step.arguments[layer.inputs[0]]).text]
        if "hx" in layer.inputs:
            texts = [self._text(part).text for part in self._state(step)]
            arguments += [texts[0] if len(texts) == 1 else f"({', '.join(texts)})"] if texts else []
        return function(f"self.{layer.name}", *arguments), None

    def _take_custom(self, index: int) -> None:
        """Write a function with a custom gradient; if that is impossible, fall back to the gradient of its forward."""
        step = self.module.steps[index]
        try:
            custom = find_custom(self.module, index)
            self._custom(custom)
            self.customs[index] = custom
        except RebuildError:  # the comparison of gradients decides
            step.arguments = {"input": step.arguments["input"]}

    def _custom(self, custom: Custom) -> str:
        """Return the name of a function with a custom gradient; functions with the same text share one."""
        names = [f"x{number}" for number in range(len(custom.takes))] if len(custom.takes) > 1 else ["x"]
        forward = _ModuleWriter(custom.forward, "", dict(enumerate(names)))
        forward.write_lines()
        backward = _ModuleWriter(custom.backward, "", dict(enumerate([*names, "grad"])))
        backward.write_lines()
        # Its `return` lists the results; autograd wants one gradient per argument instead.
        gradients = ["None" if index is None else backward.results[index].text for index in custom.gradients]
        backward.lines[-1] = (None, f"return {', '.join(gradients)}")
        lines = [
            "(torch.autograd.Function):",
            "    @staticmethod",
            f"    def forward(ctx, {', '.join(names)}):",
            f"        ctx.save_for_backward({', '.join(names)})",
            forward.body(),
            "",
            "    @staticmethod",
            "    def backward(ctx, grad):",
            f"        {', '.join(names)}{',' * (len(names) == 1)} = ctx.saved_tensors",
            backward.body(),
        ]
        text = "\n".join(lines)
        return self.functions.setdefault(text, f"Function{len(self.functions) + 1}")

    def _state(self, step: ModeStep) -> tuple[Argument, ...]:
        """Return the initial state of a recurrent layer, unless it is zero."""
        value = step.arguments.get("hx")
        parts = value if isinstance(value, tuple) else (value,)
        nodes = (self.module.steps[part.index].node if isinstance(part, Value) else None for part in parts)
        is_zero = all(node is not None and node.op == "full" and node.get("value") == 0 for node in nodes)
        return () if is_zero else parts

    def _call(self, step: ModeStep) -> Operation:
        tensors: dict[str, Any] = {}
        kinds: dict[str, TensorType] = {}
        inner = None
        for name, value in step.arguments.items():
            values = values_in(value)
            if values and isinstance(value, tuple):
                tensors[name] = [None if item is None else self._text(item) for item in value]
            elif values:
                tensors[name] = self._text(value)
                kinds[name] = self.module.steps[values[-1].index].node.outputs[values[-1].output]
                if name == "input" and values[-1] in self.pending:
                    inner = self.pending[values[-1]].call
        takes = self._count_outputs(step)
        return Operation(step.node, tensors, kinds, self._number, self.like, self.like_dtype, inner, takes)

    def _text(self, value: Argument) -> Text:
        if isinstance(value, ModeChoice):
            one, other = self._text(value.eval), self._text(value.train)
            return Text(f"{other.within(CHOICE + 1)} if self.training else {one.within(CHOICE)}", CHOICE)
        if not isinstance(value, Value):
            return Text(self._number(value, None), ATOM)
        if value in self.pending:
            return self.pending[value].text
        return self.texts.get(value) or self._leaf(self.module.steps[value.index])

    def _leaf(self, step: ModeStep) -> Text:
        if step.node.op not in ("parameter", "buffer"):
            raise RebuildError(f"{step.node.op} outside of where it has a meaning")
        old = step.node.scope
        for layer in self.calls.values():
            for name, theirs in layer.state.items():
                if theirs == old:
                    return Text(f"self.{layer.name}.{name}", ATOM)
        if old not in self.own:
            self.own[old] = (self.names.of(old, "weight"), step)
        return Text(f"self.{self.own[old][0]}", ATOM)

    def _settle(self, step: ModeStep) -> None:
        """Assign a value that differs between the modes to a variable."""
        for name, value in step.arguments.items():
            leaves = values_in(value) if isinstance(value, ModeChoice) else []
            if not leaves or len(self._text(value).text) <= _INLINE:
                continue
            holds = self._find_held(leaves)
            branches = [(mode, self._text(part).text) for mode, part in ((TRAIN, value.train), (EVAL, value.eval))]
            for leaf in leaves:
                self.pending.pop(leaf, None)
            taken = self._release(holds)
            joined = Value(len(self.module.steps), 0)
            node = self.module.steps[leaves[-1].index].node
            self.module.steps.append(ModeStep((node, node)))
            variable = self._variable(joined, taken)
            self.lines += [(mode, f"{variable} = {text}") for mode, text in branches if text != variable]
            self.uses[joined] = 1
            step.arguments[name] = joined

    def _number(self, value: Argument, call: Operation | None) -> str:
        if isinstance(value, Size):
            return self._size(value)
        if type(value) is tuple:
            return f"({', '.join(self._number(item, call) for item in value)}{',' * (len(value) == 1)})"
        if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
            return f'float("{value}")'
        if isinstance(value, ModeChoice):
            return f"{self._number(value.train, call)} if self.training else {self._number(value.eval, call)}"
        return repr(value)

    def _size(self, size: Size) -> str:
        if size.text in self.sizes:
            return "{}.shape[{}]".format(*self.sizes[size.text])
        if all(name in self.sizes for name in list_sizes(size.text)):
            return re.sub(r"[A-Z]\w*", lambda match: "{}.shape[{}]".format(*self.sizes[match[0]]), size.text)
        self.unknown.append(f"{size.value:g}, for which there is no formula")
        value = int(size.value) if size.value == int(size.value) else size.value
        return f"{value!r}{UNKNOWN}{len(self.unknown) - 1}{UNKNOWN}"

    # --- variables ------------------------------------------------------------------------------------------------

    def _find_held(self, values: Sequence[Value]) -> list[Value]:
        held: list[Value] = []
        for value in values:
            held += self.pending[value].holds if value in self.pending else [value]
        return held

    def _assign(self, value: Value) -> None:
        """Assign a value to a variable."""
        waiting = self.pending.pop(value)
        taken = self._release(waiting.holds)
        variable = self._variable(value, taken)
        self.lines.append((self.module.steps[value.index].mode, f"{variable} = {waiting.text.text}"))

    def _release(self, holds: Sequence[Value]) -> list[str]:
        """Return the names that become free after these values are read."""
        freed = []
        for value in holds:
            self.uses[value] = self.uses.get(value, 0) - 1
            text = self.texts.get(value)
            if self.uses[value] <= 0 and text is not None and self.owners.get(text.text) == value:
                del self.owners[text.text]
                freed.append(text.text)
        return freed

    def _variable(self, value: Value, taken: list[str]) -> str:
        others = {*self.owners, *self.input_names.values()} - {*taken}
        name: str = next(text for text in (*taken, *_VARIABLES) if text not in others)
        if name in taken:
            taken.remove(name)
        self.owners[name] = value
        self.texts[value] = Text(name, ATOM)
        self.uses.setdefault(value, 0)
        return name
