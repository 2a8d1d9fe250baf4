"""Constructor calls: where they start, the values of each parameter, and one attempt at construction."""

import ast
import builtins
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from extract.arguments.messages import CallTexts
from extract.arguments.trials import (
    MODULE_NAME,
    AttemptError,
    BlockNamespace,
    TimeBudget,
    attempt,
    count_elements,
    fill_unset,
    seed_all,
    unset_is_nan,
)
from extract.arguments.values import (
    BLOCK,
    candidates,
    format_call,
    is_variadic,
    list_compared,
    list_required,
    read_parameters,
    shrunk_arguments,
)
from lemur_core.graphs.composites import MetaShapes

#: Parameters that say whether weights are loaded.
_WEIGHTS = re.compile(r"(.*_)?(pre_?trained|weights|checkpoint|ckpt|download)(_.*)?")
LARGE = 400_000  # elements; for larger modules, inputs are searched on meta tensors
TOO_LARGE = 300_000_000
#: Python computes most shapes of initializations, milliseconds each, and the layers of a model repeat them.
META_SHAPES = MetaShapes()
_SECONDS = 10.0  # of CPU time for one construction
_STEPS = 200_000  # lines of the block that one construction may run


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call, by default of the constructor, as expressions."""

    args: tuple[str, ...] = ()
    kwargs: tuple[tuple[str, str], ...] = ()

    def as_json(self) -> CallTexts:
        """Return the arguments as JSON values."""
        return {"args": list(self.args), "kwargs": dict(self.kwargs)}

    @property
    def texts(self) -> list[str]:
        """The expressions, in order."""
        return [*self.args, *(text for _, text in self.kwargs)]

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


@dataclass
class Constructor:
    """Constructs one class, and knows the arguments to start from.

    Args:
        hints: as `extract.arguments.hints.HintFinder` states them; `accepted` has pairs of a parameter and the name of
            a class whose instance it takes.
        blocks: names of other module classes in the block's file.
    """

    cls: type[nn.Module]
    names: BlockNamespace
    hints: Mapping[str, Any]
    budget: TimeBudget
    blocks: tuple[str, ...] = ()
    parameters: dict[str, inspect.Parameter] = field(init=False)
    required: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = read_parameters(self.cls)
        self.required = list_required(self.parameters)

    def is_stated(self, arguments: Arguments) -> bool:
        """Return whether the corpus passes these arguments, or nothing at all is passed."""
        return arguments == Arguments() or any(read_call(call) == arguments for call in self.hints.get("init", ()))

    # -- one attempt -------------------------------------------------------------------------------------------------

    def make(self, arguments: Arguments, *, real: bool = False, limited: bool = False) -> Constructed:
        """Construct the module on meta tensors to learn its size, then for real unless it is large and `real` is false.

        What fails is tried without weights to load, which are not there.

        Args: limited: end after some steps, or a second: guessed numbers may let a constructor run for ever.
        Raises: AttemptError.
        """
        try:
            return self._make(arguments, real, limited)
        except (PermissionError, AttemptError):
            passed = dict(arguments.kwargs)
            loading = {
                name: "False" if parameter.default is True or passed.get(name) == "True" else "None"
                for name, parameter in list(self.parameters.items())[len(arguments.args) :]
                if _WEIGHTS.fullmatch(name)
                and (name in passed or parameter.default not in (None, False, parameter.empty))
            }
            without = Arguments(arguments.args, tuple({**passed, **loading}.items()))
            if without == arguments:
                raise
        return self._make(without, real, limited)

    def _make(self, arguments: Arguments, real: bool, limited: bool) -> Constructed:
        self.budget.constructions -= 1
        # The lines of other files are not counted.
        steps = _STEPS if limited and self.cls.__module__ == MODULE_NAME else None
        seconds = self.budget.construction if limited else _SECONDS
        if not real:
            try:
                with torch.device("meta"), META_SHAPES:
                    module = construct(self.cls, arguments.as_json(), self.names, seconds, steps)
                if (size := count_elements(module)) > LARGE:
                    return Constructed(arguments, module, size, on_meta=True)
            except AttemptError as failure:
                # A constructor that reads values fails on meta tensors alone: then it runs for real.
                if not fails_only_on_meta(failure):
                    raise
        module = construct(self.cls, arguments.as_json(), self.names, seconds, steps)
        return Constructed(arguments, module, count_elements(module), on_meta=False)

    # -- starts ------------------------------------------------------------------------------------------------------

    def starts(self) -> Iterator[tuple[str, Arguments]]:
        """Yield arguments to start from with where they are from, in order of what they prove."""
        hinted = [(call["way"], read_call(call)) for call in self.hints.get("init", ())]
        ran = [call.get("init") for call in self.hints.get("forward", ())]
        recorded = [arguments for way, arguments in hinted if way == "recorded"]
        guessed = [arguments for way, arguments in hinted if way not in ("recorded", "call")]
        yield from (("recorded", item) for item in recorded if item.as_json() in ran)
        if not self.required:
            yield "default", Arguments()
        yield from (("recorded, not called", item) for item in recorded if item.as_json() not in ran)
        sites = [item for way, item in hinted if way == "call"]
        stated = [item for item in sites if self._gives_all(item)]
        yield from (("call site", self.fill(item)) for item in stated)
        # What a driver guessed ran, but the source states nothing of it.
        yield from (("guessed", item) for item in sorted(guessed, key=lambda item: item.as_json() not in ran))
        yield from (("call site", self.fill(item)) for item in sites if item not in stated)
        if self.required:
            chosen = {name: self.choices(name)[0] for name in self.required}
            defaults = {name: p.default for name, p in self.parameters.items() if p.default is not p.empty}
            texts = {**chosen, **shrunk_arguments(defaults)}
            first = [n for n, p in self.parameters.items() if p.kind is p.POSITIONAL_ONLY and n in texts]
            rest = tuple((n, texts[n]) for n in self.parameters if n in texts and n not in first)
            yield "values by name", Arguments(tuple(texts[n] for n in first), rest)

    def fill(self, arguments: Arguments) -> Arguments:
        """Return arguments with values for the names in them that mean nothing here."""
        texts = {name: self._fill(name, text) for name, text in arguments.by_name(self.parameters).items()}
        return arguments.with_texts(self.parameters, texts)

    def _fill(self, parameter: str, text: str) -> str:
        tree = ast.parse(text, mode="eval")
        free = self._list_free(tree)
        if free and tree.body is free[0]:  # the whole argument
            return next(iter([*self._given(free[0].id), *self.choices(parameter)]))
        for node in free:
            values = (*self._given(node.id), *candidates(node.id))
            node.id = next(value for value in values if value != BLOCK)  # written as it is
        return ast.unparse(tree) if free else text

    def _gives_all(self, arguments: Arguments) -> bool:
        """Return whether the source gives a value to every name in a call that means nothing here."""
        trees = (ast.parse(text, mode="eval") for text in arguments.texts)
        return all(self._given(node.id) for tree in trees for node in self._list_free(tree))

    def _list_free(self, tree: ast.AST) -> list[ast.Name]:
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        known = {*self.names.names, *dir(builtins), *(n.id for n in names if isinstance(n.ctx, ast.Store))}
        return [node for node in names if node.id not in known]

    # -- values of one parameter ---------------------------------------------------------------------------------------

    def _given(self, name: str) -> list[str]:
        """Return what the source gives to a name."""
        return [text for known, text in self.hints.get("values", ()) if known == name]

    def choices(self, name: str) -> tuple[str, ...]:
        """Return expressions to try for a parameter, in order of what they prove.

        These are classes that it accepts, what the source gives to a parameter of this name, texts that the file
        compares it with, and usual values by its name and annotation.
        """
        parameter = self.parameters.get(name)
        annotation = parameter.annotation if parameter is not None else inspect.Parameter.empty
        texts = [*self.accepted.get(name, ()), *self._given(name)]
        texts += list_compared(self.cls.__module__, name, annotation)
        for text in candidates(name, annotation):
            texts += self.blocks[:4] if text == BLOCK else [text]
        return tuple(dict.fromkeys(texts))

    def plain(self, name: str) -> str:
        """Return a number, a text or a container for what code reads by a name."""
        return next(text for text in (*self.choices(name), "None") if not text.startswith(("nn.", "F.")))

    @cached_property
    def accepted(self) -> Mapping[str, tuple[str, ...]]:
        """The expressions for parameters that take an instance of a known class."""
        found: dict[str, tuple[str, ...]] = {}
        for parameter, name in self.hints.get("accepted", ()):
            cls = self.names.names.get(name)
            if not isinstance(cls, type):
                continue  # it could not be loaded
            # One that cannot be made here, such as a model of a hub, is replaced.
            layers = ["nn.Identity()"] if issubclass(cls, nn.Module) else []
            found[parameter] = (*found.get(parameter, ()), *instances(name, cls), *layers)
        return found


def construct(
    cls: type[nn.Module], init: CallTexts, names: BlockNamespace, seconds: float, steps: int | None = None
) -> nn.Module:
    """Construct a module with a fixed seed. Raises: AttemptError."""

    def action() -> Any:
        args = [names.value(text) for text in init["args"]]
        kwargs = {name: names.value(text) for name, text in init["kwargs"].items()}
        seed_all()  # again: the arguments may have drawn numbers, as in `torch.randn(3)`
        return cls(*args, **kwargs)

    seed_all()
    module = attempt(action, seconds, steps=steps)
    if not isinstance(module, nn.Module):
        raise AttemptError(TypeError(f"the constructor returned a {type(module).__name__}, not a module"))
    return module


def instances(name: str, cls: Any) -> list[str]:
    """Return expressions that construct a class; of a configuration with small values first."""
    parameters = read_parameters(cls)
    chosen = {key: candidates(key, parameters[key].annotation)[0] for key in list_required(parameters)}
    needed = {key: text for key, text in chosen.items() if text != BLOCK}
    if not (name.endswith(("Config", "Configuration", "Args", "Settings")) or hasattr(cls, "__dataclass_fields__")):
        return [format_call(name, needed)]
    known = {key: parameter.default for key, parameter in parameters.items()}
    try:
        # An instance has the fields that the constructor derives; the signature has not.
        made = {key: value for key, value in vars(attempt(cls)).items() if not key.startswith("_")}
    except (AttemptError, TypeError):  # fall back to the signature
        pass
    else:
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        known, needed = {key: value for key, value in made.items() if takes_any or key in parameters}, {}
    small = needed | shrunk_arguments(known)
    return list(dict.fromkeys([format_call(name, small), format_call(name, needed)]))


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


def fails_only_on_meta(failure: AttemptError) -> bool:
    """Return whether a failure is due to meta tensors, which hold no data."""
    # An UnboundLocalError: its own handler passed over the cause.
    is_kind = isinstance(failure.cause, NotImplementedError | UnboundLocalError)
    return is_kind or re.search(r"(?i)meta|_local_scalar_dense|numpy", str(failure)) is not None
