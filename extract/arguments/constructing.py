"""Search for constructor arguments: those the corpus passes, then guesses from names, repaired after each failure."""

import ast
import builtins
import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from extract.arguments.settings import configuration_expressions
from extract.arguments.trials import (
    AttemptError,
    BlockNamespace,
    TimeBudget,
    attempt,
    count_elements,
    fill_unset,
    seed_all,
    unset_is_nan,
)
from extract.arguments.values.compared import list_fitting, read_compared
from extract.arguments.values.inputs import is_variadic, list_required
from extract.arguments.values.names import (
    BLOCK,
    annotation_text,
    candidates,
    format_call,
    read_parameters,
    shrunk_arguments,
)
from lemur_core.graphs.composites import MetaShapes

#: Parameters that say whether weights are loaded, and messages of what cannot load them.
_WEIGHTS = re.compile(r"(.*_)?(pre_?trained|weights|checkpoint|ckpt|download)(_.*)?")
_UNREACHED = re.compile(r"(?i)urlopen|name resolution|download|connection|offline|huggingface|No such file")
_LAYER = "nn.Identity()"
LARGE = 400_000  # elements; for larger modules, inputs are searched on meta tensors
TOO_LARGE = 300_000_000
#: Python computes most shapes of initializations, milliseconds each, and the layers of a model repeat them.
META_SHAPES = MetaShapes()


@dataclass(frozen=True, slots=True)
class Arguments:
    """Constructor arguments as expressions."""

    args: tuple[str, ...] = ()
    kwargs: tuple[tuple[str, str], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the arguments as JSON values."""
        return {"args": list(self.args), "kwargs": dict(self.kwargs)}

    def by_name(self, parameters: Mapping[str, inspect.Parameter]) -> dict[str, str]:
        """Return the expressions by parameter; those that no parameter takes by position under their position."""
        names = [name for name, parameter in parameters.items() if not is_variadic(parameter)]
        names += [f"*{position}" for position in range(len(names), len(self.args))]
        return {**dict(zip(names, self.args, strict=False)), **dict(self.kwargs)}

    def with_texts(self, parameters: Mapping[str, inspect.Parameter], texts: Mapping[str, str]) -> "Arguments":
        """Return the call with other expressions, as `by_name` returns them."""
        leading = list(self.by_name(parameters))[: len(self.args)]
        rest = tuple((name, text) for name, text in texts.items() if name not in leading)
        return Arguments(tuple(texts[name] for name in leading), rest)


@dataclass(slots=True)
class Constructed:
    """A constructed module."""

    arguments: Arguments
    module: nn.Module
    size: int
    on_meta: bool


@dataclass(slots=True)
class Constructor:
    """Constructs one class, and knows the arguments to start from."""

    cls: type[nn.Module]
    names: BlockNamespace
    hints: Mapping[str, Any]
    budget: TimeBudget
    blocks: tuple[str, ...]  # names of other module classes in the block's file
    parameters: dict[str, inspect.Parameter] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    _expressions: dict[str, tuple[str, ...]] | None = None

    def __post_init__(self) -> None:
        self.parameters = read_parameters(self.cls)
        self.required = list_required(self.parameters)

    def is_stated(self, arguments: Arguments) -> bool:
        """Return whether the corpus passes these arguments, or nothing at all is passed."""
        return arguments == Arguments() or any(read_call(call) == arguments for call in self.hints.get("init", ()))

    def make(self, arguments: Arguments, *, real: bool = False) -> Constructed:
        """Construct the module on meta tensors to learn its size, then for real unless it is large and `real` is false.

        Raises: AttemptError.
        """
        try:
            return self._make(arguments, real)
        except (PermissionError, AttemptError) as failure:
            without = self._without_weights(arguments)
            if without == arguments or not (isinstance(failure, PermissionError) or _UNREACHED.search(str(failure))):
                raise
        return self._make(without, real)

    def _without_weights(self, arguments: Arguments) -> Arguments:
        """Return the arguments without what loads weights, which are not there."""
        passed = dict(arguments.kwargs)
        loading = {
            name: "False" if parameter.default is True or passed.get(name) == "True" else "None"
            for name, parameter in list(self.parameters.items())[len(arguments.args) :]
            if _WEIGHTS.fullmatch(name) and (name in passed or parameter.default not in (None, False, parameter.empty))
        }
        return Arguments(arguments.args, tuple({**passed, **loading}.items()))

    def _make(self, arguments: Arguments, real: bool) -> Constructed:
        self.budget.constructions -= 1
        size = 0
        if not real:
            try:
                with torch.device("meta"), META_SHAPES:
                    module = self._new(arguments)
                size = count_elements(module)
                if size > LARGE:
                    return Constructed(arguments, module, size, on_meta=True)
            except AttemptError as failure:
                # A constructor that reads values fails on meta tensors alone: then it runs for real.
                if not fails_only_on_meta(failure):
                    raise
        module = self._new(arguments)
        return Constructed(arguments, module, count_elements(module), on_meta=False)

    def _new(self, arguments: Arguments) -> nn.Module:
        def action() -> Any:
            args = [self.names.value(text) for text in arguments.args]
            kwargs = {name: self.names.value(text) for name, text in arguments.kwargs}
            return self.cls(*args, **kwargs)

        seed_all()
        module = attempt(action)
        if not isinstance(module, nn.Module):
            raise AttemptError(TypeError(f"the constructor returned a {type(module).__name__}, not a module"))
        return module

    # -- starts ------------------------------------------------------------------------------------------------------

    def starts(self) -> Iterator[tuple[str, Arguments]]:
        """Yield arguments to start from with where they are from, in order of what they prove."""
        hinted = [(call["way"], read_call(call)) for call in self.hints.get("init", ())]
        ran = [call.get("init") for call in self.hints.get("forward", ())]
        recorded = [arguments for way, arguments in hinted if way != "call"]
        yield from (("recorded", item) for item in recorded if item.as_json() in ran)
        if not self.required:
            yield "default", Arguments()
        yield from (("recorded, not called", item) for item in recorded if item.as_json() not in ran)
        yield from (("call site", self.fill(item)) for way, item in hinted if way == "call")
        if self.required:
            guessed = {name: self.choices(name)[0] for name in self.required}
            if stated := dict(self.hints.get("values", ())):
                yield "values of the file", order_arguments(self.parameters, {**guessed, **stated})
            defaults = {name: p.default for name, p in self.parameters.items() if p.default is not p.empty}
            yield "names", order_arguments(self.parameters, {**guessed, **shrunk_arguments(defaults)})

    def fill(self, arguments: Arguments) -> Arguments:
        """Return arguments with values for the names in them that mean nothing here."""
        known = {*self.names.names, *dir(builtins)}
        texts = {name: self._fill(name, text, known) for name, text in arguments.by_name(self.parameters).items()}
        return arguments.with_texts(self.parameters, texts)

    def _fill(self, parameter: str, text: str, known: Collection[str]) -> str:
        tree = ast.parse(text, mode="eval")
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        free = [node for node in names if node.id not in known and node.id not in bound]
        if free and tree.body is free[0]:  # the whole argument
            return self.choices(parameter)[0]
        for node in free:
            node.id = next(value for value in candidates(node.id) if value != BLOCK)  # written as it is
        return ast.unparse(tree) if free else text

    def choices(self, name: str) -> tuple[str, ...]:
        """Return expressions to try for a parameter, most likely first."""
        parameter = self.parameters.get(name)
        annotation = parameter.annotation if parameter is not None else inspect.Parameter.empty
        compared = read_compared(self.cls.__module__).get(name, ())
        texts = [*self.companions().get(name, ()), *list_fitting(compared, annotation_text(annotation))]
        for text in candidates(name, annotation):
            texts += self.blocks[:4] if text == BLOCK else [text]
        return tuple(dict.fromkeys(texts))

    def companions(self) -> dict[str, tuple[str, ...]]:
        """Return expressions for parameters that take a class of the corpus, or an instance of one."""
        if self._expressions is None:
            self._expressions = {}
            for item in self.hints.get("companions", ()):
                if item["parameter"] and item["name"] in self.names.names:
                    cls, known = self.names.names[item["name"]], self._expressions.get(item["parameter"], ())
                    texts = [item["name"]] if item["wants_class"] else instances(item["name"], cls)
                    # One that cannot be made here, such as a model of a hub, is replaced.
                    texts += [_LAYER] if isinstance(cls, type) and issubclass(cls, nn.Module) else []
                    self._expressions[item["parameter"]] = (*known, *texts)
        return self._expressions


def instances(name: str, cls: Any) -> list[str]:
    """Return expressions that construct a companion class."""
    if not isinstance(cls, type):
        return [name]
    if name.endswith(("Config", "Configuration", "Args", "Settings")) or hasattr(cls, "__dataclass_fields__"):
        return configuration_expressions(name, cls)
    parameters = read_parameters(cls)
    chosen = {key: candidates(key, parameters[key].annotation)[0] for key in list_required(parameters)}
    return [format_call(name, {key: text for key, text in chosen.items() if not text.startswith("@")})]


def confirm(constructor: Constructor, arguments: Arguments) -> tuple[nn.Module, list[str]]:
    """Construct the module for real, and fill the parameters that its constructor leaves unset.

    Returns: the module, and the names of these parameters.
    Raises: AttemptError.
    """
    with unset_is_nan():
        module = constructor.make(arguments, real=True).module
    return module, fill_unset(module)


def read_call(call: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a hint."""
    return Arguments(tuple(call["args"]), tuple((name, text) for name, text in call["kwargs"]))


def order_arguments(parameters: Mapping[str, inspect.Parameter], texts: Mapping[str, str]) -> Arguments:
    """Return arguments by name as a call, in the order of the parameters."""
    positional = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY and n in texts]
    names = [n for n in parameters if n in texts and n not in positional] + [n for n in texts if n not in parameters]
    return Arguments(tuple(texts[n] for n in positional), tuple((n, texts[n]) for n in names))


def fails_only_on_meta(failure: AttemptError) -> bool:
    """Return whether a failure is due to meta tensors, which hold no data."""
    text = str(failure)
    return (
        isinstance(failure.cause, NotImplementedError | UnboundLocalError)  # the latter: its own handler passed over it
        or "meta" in text.lower()
        or "_local_scalar_dense" in text
        or "numpy" in text
    )
