"""Search for constructor arguments: those the corpus passes, then guesses from names, repaired after each failure."""

import contextlib
import dataclasses
import heapq
import inspect
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from extract.arguments.messages import NAME
from extract.arguments.settings import FIRST, configuration_expressions, is_unlike_module, parse_settings, read_items
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
from extract.arguments.values.compared import Compared, read_compared
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

_MISSING_ARGUMENTS = re.compile(r"missing \d+ required (positional|keyword-only) arguments?")
_NAMED = re.compile(r"[`'\"](\w+)[`'\"] (?:must be|needs to be|has to be) (?:passed|given|provided|specified|set)")
#: Parameters that say whether weights are loaded, and messages of what cannot load them.
_WEIGHTS = re.compile(r"(.*_)?(pre_?trained|weights|checkpoint|ckpt|download)(_.*)?")
_UNREACHED = re.compile(r"(?i)urlopen|name resolution|download|connection|offline|huggingface|No such file")
_MAX_OPTIONAL = 8  # optional parameters to try after one failure
_LAYERS = ("nn.Identity()", FIRST, "[nn.Identity()]", "F.relu")
_UNCALLABLE = re.compile(
    r"object is not callable|must be Tensor, not [A-Z]|forward\(\) got an unexpected keyword"
    r"|forward\(\) takes \d+ positional arguments? but \d+ were given"
)
_OUTSIDE = re.compile(r"out of (?:range|bounds)")
_LENGTH = re.compile(r"unpack \(expected (\d+)|of (?:length|size|len) (\d+)|(\d+) (?:elements|values|items)")
_NO_PAIR = re.compile(r"cannot unpack non-iterable (?:int|float|str) ")
_LOOP = re.compile(r"\bfor (?:\w+, \()?(\w+(?:, \w+)+)\)? in ")
_FIRST_TRIES, _FEW_TRIES = 4, 12
_FEW = 4  # of the values for a name
_MAX_LENGTH = 8
_MAX_GROWN = 64
#: Sizes that a kernel or a pool does not fit into.
TOO_SMALL = re.compile(
    r"too (?:small|short)|can't be greater|should be less than|at least|must be (?:greater|larger)|is empty"
)
#: Widths that were divided by a number of heads or groups, and gave 0 or a rest.
_TOO_NARROW = re.compile(
    r"multiple of|divisible|\[[^\]]*\b0\b[^\]]*\]' is invalid|zero|must be positive|non-empty|range\(\) arg 3"
)
_LEAST_WIDTH = 8
_SHARED_PREFIX = 3  # letters
_MAX_TRIES = 80  # sets of required arguments
_NUMBER = re.compile(r"(n|num|nb|number)_.*")
_OTHER_NAME = ("name='x'", "name='y'")
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


@dataclass(slots=True)
class Constructed:
    """A constructed module. Args: tries: of inputs, if it is not worth as many as others."""

    arguments: Arguments
    module: nn.Module
    size: int
    on_meta: bool
    tries: int | None = None


@dataclass(slots=True)
class Constructor:
    """Search for arguments of one class; keeps the failure with the most progress."""

    cls: type[nn.Module]
    names: BlockNamespace
    hints: Mapping[str, Any]
    budget: TimeBudget
    blocks: tuple[str, ...]  # names of other module classes in the block's file
    best_failure: tuple[AttemptError, Arguments] | None = None
    parameters: dict[str, inspect.Parameter] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    _expressions: dict[str, tuple[str, ...]] | None = None

    def __post_init__(self) -> None:
        self.parameters = read_parameters(self.cls)
        self.required = list_required(self.parameters)

    @property
    def spent(self) -> bool:
        """Return whether the budget is used up."""
        return self.budget.constructions <= 0 or self.budget.late()

    def is_stated(self, arguments: Arguments) -> bool:
        """Return whether the corpus passes these arguments, or nothing at all is passed."""
        return arguments == Arguments() or any(_call(call) == arguments for call in self.hints.get("init", ()))

    def _shrink_defaults(self) -> dict[str, str]:
        defaults = {name: p.default for name, p in self.parameters.items() if p.default is not p.empty}
        return shrunk_arguments(defaults)

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

    def plans(self) -> Iterator[Constructed]:
        """Yield modules built in different ways, most promising first; try each with inputs."""
        seen: set[Arguments] = set()
        succeeded = False
        hinted = [(call["way"], _call(call)) for call in self.hints.get("init", ())]
        called = [call.get("init") for call in self.hints.get("forward", ())]
        recorded = [arguments for way, arguments in hinted if way != "call"]
        # Nobody saw a call of these: the likeliest inputs, and the others where nothing else works.
        uncalled = [a for a in recorded if a != Arguments() and a.as_json() not in called]
        calls = [arguments for way, arguments in hinted if way == "call"]
        default = [] if self.required else [Arguments()]
        small = [] if self.required else [Arguments(kwargs=tuple(self._shrink_defaults().items()))]
        # A class that takes only a configuration is tried with a small one first.
        configured = len(self.required) == 1 and self.required[0] in self.companions()
        late: list[Constructed] = []
        # Where others were seen to run, inputs for the defaults are guessed after these.
        seen_running = any(a != Arguments() and a.as_json() in called for a in recorded)
        for built in self._construct_unchanged([*default, *recorded, *small, *(calls if not configured else ())], seen):
            succeeded = True
            # The defaults of large models take seconds each: small values first.
            if built.on_meta and built.arguments in default:
                late.append(built)
            else:
                first = seen_running and built.arguments in default
                late += [dataclasses.replace(built)] if first else []
                built.tries = _FIRST_TRIES if first else _FEW_TRIES if built.arguments in uncalled else None
                yield built
        yield from late
        if not self.required and succeeded:
            yield from self._construct_unchanged(uncalled, set())
            return
        yield from self._repair_required(seen if succeeded else set())  # repairs may start from what failed
        yield from self._construct_unchanged(calls, seen)
        yield from self._construct_unchanged(uncalled, set())

    def _construct_unchanged(self, ways: Sequence[Arguments], seen: set[Arguments]) -> Iterator[Constructed]:
        """Yield the modules constructed from these arguments, without repairing them."""
        for arguments in ways:
            if self.spent:
                return
            if arguments not in seen:
                seen.add(arguments)
                try:
                    yield self.make(arguments)
                except AttemptError as failure:
                    self._remember(failure, arguments)

    def _repair_required(self, seen: set[Arguments]) -> Iterator[Constructed]:
        """Guess required arguments from their names and change those that a failure names; best-first by progress."""
        tries = _MAX_TRIES
        counter = itertools.count()
        choices = {name: self._choices(name) for name in self.required}
        heap: list[tuple[tuple[int, ...], int, dict[str, int], dict[str, str]]] = []
        heapq.heappush(heap, ((0,), next(counter), dict.fromkeys(choices, 0), self._shrink_defaults()))
        while heap and tries > 0 and not self.spent:
            _, _, picks, extra = heapq.heappop(heap)
            texts = {name: choices[name][index] for name, index in picks.items()}
            arguments = _order_arguments(self.parameters, {**texts, **extra})
            if arguments in seen:
                continue
            seen.add(arguments)
            tries -= 1
            try:
                yield self.make(arguments)
            except AttemptError as failure:
                self._remember(failure, arguments)
                for fresh_picks, fresh_extra in self._suggest_changes(failure, picks, choices, extra):
                    # The counter breaks ties: choices cannot be compared, and the earlier one is tried first.
                    heapq.heappush(heap, (failure.rank, next(counter), fresh_picks, fresh_extra))
            else:
                return  # other values would fail in the same way

    def variants(self, built: Constructed, failure: AttemptError) -> Iterator[Constructed]:
        """Yield the module with other values for the parameters that a failing forward names."""
        before = dict(built.arguments.kwargs)
        at_once = is_unlike_module(failure)
        if at_once:
            yield from self._make_better(built, failure)
        classes = [name for name, text in before.items() if text == "nn.Identity"]
        if classes and "Identity" in str(failure):  # a class was called in place of a layer
            yield from self._make_changed(built, [dict.fromkeys(classes, layer) for layer in _LAYERS[:2]])
        words = [word for line in reversed(failure.lines) for word in NAME.findall(line)]
        named = [w for w in dict.fromkeys(words) if w in self.parameters and not is_variadic(self.parameters[w])]
        named += [name for name in self.required if name not in named]
        positional = len(built.arguments.args)
        layers = _LAYERS if _UNCALLABLE.search(str(failure)) else ()  # the value was called
        if layers:
            called = re.findall(r"self\.(\w+)\(", " ".join(failure.lines[-1:]))
            named = [name for name in self.parameters if any(map(partial(_may_match, name), called))] + named
            named = list(dict.fromkeys(named))
        for name in [n for n in named if n not in list(self.parameters)[:positional]][:3]:
            # The first index is everywhere.
            inside = [re.sub(r"\b\d+\b", "1", before.get(name, ""))] if _OUTSIDE.search(str(failure)) else []
            for text in (*layers, *filter(None, inside), *self._choices(name)[:6]):
                if text == before.get(name) or self.spent:
                    continue
                kwargs = _order_arguments(self.parameters, {**before, name: text}).kwargs
                with contextlib.suppress(AttemptError):
                    yield self.make(Arguments(built.arguments.args, kwargs))
        if not at_once:
            yield from self._make_better(built, failure)
        yield from self._make_changed(built, _widen(failure, before))

    def _make_better(self, built: Constructed, failure: AttemptError) -> Iterator[Constructed]:
        better = self._improve(failure, dict(built.arguments.kwargs))
        yield from self._make_changed(built, ({name: text} for name, text in better))

    def _make_changed(self, built: Constructed, changes: Iterable[Mapping[str, str]]) -> Iterator[Constructed]:
        before = dict(built.arguments.kwargs)
        for kwargs in ({**before, **change} for change in changes):
            with contextlib.suppress(AttemptError):
                if kwargs != before:
                    yield self.make(Arguments(built.arguments.args, tuple(kwargs.items())))

    def _suggest_changes(
        self,
        failure: AttemptError,
        picks: Mapping[str, int],
        choices: Mapping[str, Sequence[str]],
        extra: Mapping[str, str],
    ) -> Iterator[tuple[dict[str, int], dict[str, str]]]:
        texts = {name: choices[name][index] for name, index in picks.items()}
        words = [word for line in reversed(failure.lines) for word in NAME.findall(line)]
        named_words = NAME.findall(str(failure))
        words += [*named_words, *map("_".join, itertools.pairwise(named_words))]  # "an output size" is `output_size`
        missing = _list_missing(failure)
        if any(p.kind is p.VAR_KEYWORD for p in self.parameters.values()):  # `**kwargs` that a base class requires
            more = {n: self._choices(n)[0] for n in missing if n not in self.parameters and n not in extra}
            if more:
                yield dict(picks), {**extra, **more}
        known, companions = {**texts, **extra}, self.companions()
        better = self._improve(failure, known)
        # What is read by key is a dict; what has an attribute may be anything.
        sure = [n not in companions and (t.startswith("{") or parse_settings(known[n]) is not None) for n, t in better]
        yield from ((dict(picks), {**extra, name: text}) for name, text in itertools.compress(better, sure))
        yield from ((dict(picks), {**extra, name: text}) for name, text in self._fill_settings(words, extra))
        named = [word for word in dict.fromkeys(words) if word in picks]
        optional = [w for w in dict.fromkeys(words) if w in self.parameters and w not in picks]
        optional = [name for name in optional if not is_variadic(self.parameters[name])][:3]
        passed_on = [w for w in dict.fromkeys(words) if w in extra and w not in self.parameters]
        if TOO_SMALL.search(str(failure)):  # the size of an image, for a kernel or a pool
            sizes = {n: int(text) for n in named if (text := extra.get(n, texts[n])).isdecimal()}
            larger = {n: str(4 * size) for n, size in sizes.items() if size <= _MAX_GROWN}
            yield from [(dict(picks), {**extra, **larger})] if larger else []
        yield from ((dict(picks), {**extra, **wider}) for wider in _widen(failure, {**texts, **extra}))
        if isinstance(failure.cause, IndexError):  # more items are counted than a list has
            numbers = [
                name for name, text in {**texts, **extra}.items() if _NUMBER.fullmatch(name) and text.isdecimal()
            ]
            yield from [(dict(picks), {**extra, **dict.fromkeys(numbers, "2")})] if numbers else ()
        for name in named:
            yield from ((dict(picks), {**extra, name: text}) for text in _fit_length(failure, texts[name]))
        for name in named:
            yield from (({**picks, name: index}, dict(extra)) for index in _other_indices(choices[name], picks[name]))
        # A configuration of the wrong class fails anywhere: where what it lacks is read.
        for name, proposed in companions.items():
            others = _other_indices(choices[name], picks[name]) if name in picks and name not in named else ()
            yield from (({**picks, name: index}, dict(extra)) for index in others if choices[name][index] in proposed)
        for name in [*optional[:_MAX_OPTIONAL], *passed_on]:
            yield from (
                (dict(picks), {**extra, name: text}) for text in self._choices(name)[:4] if extra.get(name) != text
            )
        yield from ((dict(picks), {**extra, name: text}) for name, text in better)

    def _improve(self, failure: AttemptError, texts: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return arguments with better values: with what was read of them by name."""
        return list(read_items(self.cls).improve(failure, texts, self.names.value))  # type: ignore[arg-type]

    def _fill_settings(self, words: Sequence[str], texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yield the parameters whose default is an object with settings, with those set that are None and read.

        `Stage(width, settings=Settings())` gets `settings=Settings(window_size=4, grid_size=4)`: such go together.
        """
        for name, parameter in self.parameters.items():
            kind = type(parameter.default)
            if dataclasses.is_dataclass(kind) and self.names.names.get(kind.__name__) is kind:
                text = texts.get(name, f"{kind.__name__}()")
                value = None
                with contextlib.suppress(AttemptError):  # it may need arguments
                    value = attempt(partial(self.names.value, text))
                unset = [n for n, held in vars(value).items() if held is None] if isinstance(value, kind) else []
                for word in (word for word in dict.fromkeys(words) if word in unset):
                    alike = [other for other in unset if candidates(other) == candidates(word)]
                    for item in (item for item in candidates(word)[:_FEW] if item != BLOCK):
                        settings = ", ".join(f"{other}={item}" for other in alike)
                        yield name, f"{text[:-1]}, {settings})".replace("(, ", "(")

    def _choices(self, name: str) -> tuple[str, ...]:
        texts = [*self.companions().get(name, ())]
        parameter = self.parameters.get(name)
        compared = read_compared(self.cls.__module__).get(name, Compared())
        annotation = parameter.annotation if parameter is not None else inspect.Parameter.empty
        texts += map(read_items(self.cls).complete(name), compared.settings)  # type: ignore[arg-type]
        texts += compared.list_fitting(annotation_text(annotation))
        tables = read_compared(self.cls.__module__).items()
        items = [text for known, other in tables if name.endswith(known) for text in other.items]
        for text in compared.classes:
            texts += self._instances(text)
        for text in items:
            texts += (f"[{one}, {one.replace(*_OTHER_NAME)}]" for one in self._instances(text))
        for text in candidates(name, annotation):
            texts += self.blocks[:4] if text == BLOCK else [text]
        return tuple(dict.fromkeys(texts))

    def _instances(self, text: str) -> list[str]:
        """Return expressions that construct a class that a name is compared with; none if its name means nothing."""
        with contextlib.suppress(Exception):  # it may mean something only where it was compared
            return instances(text, self.names.value(text))
        return []

    def companions(self) -> dict[str, tuple[str, ...]]:
        """Return expressions for parameters that take a class of the corpus, or an instance of one."""
        if self._expressions is None:
            self._expressions = {}
            for item in self.hints.get("companions", ()):
                if item["parameter"] and item["name"] in self.names.names:
                    cls, known = self.names.names[item["name"]], self._expressions.get(item["parameter"], ())
                    texts = [item["name"]] if item["wants_class"] else instances(item["name"], cls)
                    # One that cannot be made here, such as a model of a hub, is replaced.
                    texts += [_LAYERS[0]] if isinstance(cls, type) and issubclass(cls, nn.Module) else []
                    self._expressions[item["parameter"]] = (*known, *texts)
        return self._expressions

    def _remember(self, failure: AttemptError, arguments: Arguments) -> None:
        if self.best_failure is None or failure.progress > self.best_failure[0].progress:
            self.best_failure = (failure, arguments)


def instances(name: str, cls: Any) -> list[str]:
    """Return expressions that construct a companion class."""
    if not isinstance(cls, type):
        return [name]
    if name.endswith(("Config", "Configuration", "Args", "Settings")) or hasattr(cls, "__dataclass_fields__"):
        return configuration_expressions(name, cls)
    parameters = read_parameters(cls)
    chosen = {key: candidates(key, parameters[key].annotation)[0] for key in list_required(parameters)}
    return [format_call(name, {key: text for key, text in chosen.items() if not text.startswith("@")})]


def _may_match(name: str, other: str) -> bool:
    """Return whether an attribute may hold a parameter: one name contains the other, or both start alike."""
    return name in other or other in name or name[:_SHARED_PREFIX] == other[:_SHARED_PREFIX]


def _other_indices(choices: Sequence[str], index: int) -> Iterator[int]:
    return (other for other in range(len(choices)) if other != index)


def confirm(constructor: Constructor, arguments: Arguments) -> tuple[nn.Module, list[str]]:
    """Construct the module for real, and fill the parameters that its constructor leaves unset.

    Returns: the module, and the names of these parameters.
    Raises: AttemptError.
    """
    with unset_is_nan():
        module = constructor.make(arguments, real=True).module
    return module, fill_unset(module)


def _widen(failure: AttemptError, texts: Mapping[str, str]) -> list[dict[str, str]]:
    """Return larger widths for a failure of what is a fraction of them."""
    if not _TOO_NARROW.search(str(failure)):
        return []
    sizes = {name: int(text) for name, text in texts.items() if text.isdecimal()}
    wider = {name: str(4 * size) for name, size in sizes.items() if _LEAST_WIDTH <= size <= _MAX_GROWN}
    return [wider] if wider else []


def _fit_length(failure: AttemptError, text: str) -> list[str]:
    """Return a tuple and a list of the length that a message names, with the items of a value.

    Where a loop unpacks the items, each becomes a tuple: `for width, depth in stages`.
    """
    loop = _LOOP.search("".join(failure.lines[-1:])) if _NO_PAIR.search(str(failure)) else None
    if loop is not None:
        pair = ", ".join([r"\g<0>"] * len(loop[1].split(",")))
        return [re.sub(r"[^\[\](), ]+", f"({pair})", text)]
    length = _LENGTH.search(str(failure))
    if length is None:
        return []
    items = re.findall(r"[^\[\](), ]+", text) or ["1"]
    fitted = ", ".join(
        items[min(number, len(items) - 1)] for number in range(min(int(length[length.lastindex or 0]), _MAX_LENGTH))
    )
    return [f"({fitted},)", f"[{fitted}]"]


def _call(call: Mapping[str, Any]) -> Arguments:
    return Arguments(tuple(call["args"]), tuple((name, text) for name, text in call["kwargs"]))


def _list_missing(failure: AttemptError) -> list[str]:
    """Return the arguments that a failed construction lacks, by its message."""
    if _MISSING_ARGUMENTS.search(str(failure)):
        return re.findall(r"'(\w+)'", str(failure))
    if isinstance(failure.cause, KeyError):
        return re.findall(r"^'([a-z]\w*)'$", str(failure))
    return _NAMED.findall(str(failure))


def _order_arguments(parameters: Mapping[str, inspect.Parameter], texts: Mapping[str, str]) -> Arguments:
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
