"""Constructor calls: where they start, the values of each parameter, and one attempt at construction."""

import ast
import builtins
import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from extract.arguments.messages import CallTexts
from extract.arguments.probe import MODULE_NAME
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
from extract.arguments.values.inputs import is_variadic, list_required
from extract.arguments.values.names import (
    BLOCK,
    candidates,
    format_call,
    format_dict,
    list_compared,
    read_parameters,
    shrunk_arguments,
)
from lemur_core.graphs.composites import MetaShapes

#: Parameters that say whether weights are loaded, and messages of what cannot load them.
_WEIGHTS = re.compile(r"(.*_)?(pre_?trained|weights|checkpoint|ckpt|download)(_.*)?")
_UNREACHED = re.compile(r"(?i)urlopen|name resolution|download|connection|offline|huggingface|No such file")
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
    """Constructs one class, and knows the arguments to start from."""

    cls: type[nn.Module]
    names: BlockNamespace
    hints: Mapping[str, Any]
    budget: TimeBudget
    blocks: tuple[str, ...]  # names of other module classes in the block's file
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

        Args: limited: end after some steps, or a second: guessed numbers may let a constructor run for ever.
        Raises: AttemptError.
        """
        try:
            return self._make(arguments, real, limited)
        except (PermissionError, AttemptError) as failure:
            without = self._without_weights(arguments)
            if without == arguments or not (isinstance(failure, PermissionError) or _UNREACHED.search(str(failure))):
                raise
        return self._make(without, real, limited)

    def _without_weights(self, arguments: Arguments) -> Arguments:
        """Return the arguments without what loads weights, which are not there."""
        passed = dict(arguments.kwargs)
        loading = {
            name: "False" if parameter.default is True or passed.get(name) == "True" else "None"
            for name, parameter in list(self.parameters.items())[len(arguments.args) :]
            if _WEIGHTS.fullmatch(name) and (name in passed or parameter.default not in (None, False, parameter.empty))
        }
        return Arguments(arguments.args, tuple({**passed, **loading}.items()))

    def _make(self, arguments: Arguments, real: bool, limited: bool) -> Constructed:
        self.budget.constructions -= 1
        if not real:
            try:
                with torch.device("meta"), META_SHAPES:
                    module = self._new(arguments, limited)
                if (size := count_elements(module)) > LARGE:
                    return Constructed(arguments, module, size, on_meta=True)
            except AttemptError as failure:
                # A constructor that reads values fails on meta tensors alone: then it runs for real.
                if not fails_only_on_meta(failure):
                    raise
        module = self._new(arguments, limited)
        return Constructed(arguments, module, count_elements(module), on_meta=False)

    def _new(self, arguments: Arguments, limited: bool) -> nn.Module:
        # The lines of other files are not counted.
        steps = _STEPS if limited and self.cls.__module__ == MODULE_NAME else None
        seconds = self.budget.construction if limited else _SECONDS
        return construct(self.cls, arguments.as_json(), self.names, seconds, steps)

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
            chosen = {name: self.choices(name)[0] for name in self.required}
            defaults = {name: p.default for name, p in self.parameters.items() if p.default is not p.empty}
            yield "values by name", order_arguments(self.parameters, {**chosen, **shrunk_arguments(defaults)})

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

    # -- values of one parameter ---------------------------------------------------------------------------------------

    def choices(self, name: str) -> tuple[str, ...]:
        """Return expressions to try for a parameter, in order of what they prove.

        These are classes that its annotation names, what the source gives to a parameter of this name, texts that the
        file compares it with, and usual values by its name and annotation.
        """
        parameter = self.parameters.get(name)
        annotation = parameter.annotation if parameter is not None else inspect.Parameter.empty
        given = [text for known, text in self.hints.get("values", ()) if known == name]
        texts = [*self.companions.get(name, ()), *given, *list_compared(self.cls.__module__, name, annotation)]
        for text in candidates(name, annotation):
            texts += self.blocks[:4] if text == BLOCK else [text]
        return tuple(dict.fromkeys(texts))

    def plain(self, name: str) -> str:
        """Return a number, a text or a container for what code reads by a name."""
        return next(text for text in (*self.choices(name), "None") if not text.startswith(("nn.", "F.")))

    @cached_property
    def companions(self) -> Mapping[str, tuple[str, ...]]:
        """The expressions for parameters that take a class of the corpus, or an instance of one."""
        found: dict[str, tuple[str, ...]] = {}
        for item in self.hints.get("companions", ()):
            name, parameter = item["name"], item["parameter"]
            if parameter and name in self.names.names:
                cls = self.names.names[name]
                texts = [name] if item["wants_class"] else instances(name, cls)
                # One that cannot be made here, such as a model of a hub, is replaced.
                texts += ["nn.Identity()"] if isinstance(cls, type) and issubclass(cls, nn.Module) else []
                found[parameter] = (*found.get(parameter, ()), *texts)
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
    """Return expressions that construct a companion class; of a configuration with small values first."""
    if not isinstance(cls, type):
        return [name]
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
    for key, value in known.items():
        if key.endswith("_config"):
            fields = value if isinstance(value, dict) else getattr(value, "__dict__", {})
            inner = shrunk_arguments({key: item for key, item in fields.items() if not key.startswith("_")})
            small |= {key: format_dict(dict(sorted(inner.items())))} if inner else {}
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


def order_arguments(parameters: Mapping[str, inspect.Parameter], texts: Mapping[str, str]) -> Arguments:
    """Return arguments by name as a call, in the order of the parameters."""
    positional = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY and n in texts]
    names = [n for n in parameters if n in texts and n not in positional] + [n for n in texts if n not in parameters]
    return Arguments(tuple(texts[n] for n in positional), tuple((n, texts[n]) for n in names))


def fails_only_on_meta(failure: AttemptError) -> bool:
    """Return whether a failure is due to meta tensors, which hold no data."""
    # An UnboundLocalError: its own handler passed over the cause.
    is_kind = isinstance(failure.cause, NotImplementedError | UnboundLocalError)
    return is_kind or re.search(r"(?i)meta|_local_scalar_dense|numpy", str(failure)) is not None
