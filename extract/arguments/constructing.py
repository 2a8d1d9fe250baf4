"""The search for constructor arguments: what the corpus passes, then what names suggest, mended by what fails."""

import contextlib
import heapq
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from extract.arguments.configured import with_one_more
from extract.arguments.inputs import is_variadic, required
from extract.arguments.name_values import (
    BLOCK,
    SETTINGS,
    Settings,
    call_of,
    candidates,
    configuration_expressions,
    parameters_of,
    shrunk_arguments,
    value_of,
)
from extract.arguments.trials import (
    AttemptError,
    Budget,
    Namespace,
    attempt,
    fill_unset,
    seed_all,
    size_of,
    unset_is_nan,
)

_WORD = re.compile(r"[A-Za-z_]\w*")
_LACKING = re.compile(r"missing \d+ required (positional|keyword-only) arguments?")
_OPTIONAL = 8  # parameters that are looked at after one failure, beside those that must be given
_LAYERS = ("nn.Identity()", "lambda x, *_, **__: x", "[nn.Identity()]", "F.relu")
_UNCALLABLE = re.compile(r"object is not callable|forward\(\) takes \d+ positional arguments? but \d+ were given")
_FILLED = ("[32, 32]", "[[4, 4, 8, 8], [8, 8, 16, 16]]")  # for a sequence that is empty by default
_MOST_STRINGS = 6  # that a parameter is compared with
_LISTED = re.compile(r"[\[{][^\[\]{}]*[\]}]")
_WIDTH, _WIDER = "32", "128"
_VANISHED = re.compile(r"ZeroDivisionError|divisible|(?<![\w.])0(?![\w.])")
_BEGINNING = 3  # letters that two names share
_TRIES = 80  # of arguments for what is required
LARGE = 400_000  # elements; above, the search for inputs runs on meta tensors
TOO_LARGE = 300_000_000


@dataclass(frozen=True, slots=True)
class Arguments:
    """Constructor arguments as expressions."""

    args: tuple[str, ...] = ()
    kwargs: tuple[tuple[str, str], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {"args": list(self.args), "kwargs": dict(self.kwargs)}


@dataclass(slots=True)
class Constructed:
    """A module that could be constructed."""

    arguments: Arguments
    module: nn.Module
    size: int
    on_meta: bool


@dataclass(slots=True)
class Constructor:
    """Constructs one class; keeps the failure that came furthest."""

    cls: type[nn.Module]
    names: Namespace
    hints: Mapping[str, Any]
    budget: Budget
    blocks: tuple[str, ...]  # names of other module classes in the block's file
    worst: tuple[AttemptError, Arguments] | None = None
    parameters: dict[str, inspect.Parameter] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    text: str | None = None  # of the class, once it was read

    def __post_init__(self) -> None:
        self.parameters = parameters_of(self.cls)
        self.required = required(self.parameters)

    @property
    def spent(self) -> bool:
        """Whether no further construction is due."""
        return self.budget.constructions <= 0 or self.budget.late()

    def _small(self) -> dict[str, str]:
        defaults = {name: p.default for name, p in self.parameters.items() if p.default is not p.empty}
        return shrunk_arguments(defaults)

    def make(self, arguments: Arguments, *, real: bool = False) -> Constructed:
        """Construct: on meta tensors first, for the size; then for real, unless that is large and not asked for.

        Raises: AttemptError.
        """
        self.budget.constructions -= 1
        size = 0
        if not real:
            try:
                with torch.device("meta"):
                    module = self._new(arguments)
                size = size_of(module)
                if size > LARGE:
                    return Constructed(arguments, module, size, on_meta=True)
            except AttemptError as failure:
                if not only_on_meta(failure):
                    raise
        module = self._new(arguments)
        return Constructed(arguments, module, size_of(module), on_meta=False)

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
        """Modules built in different ways, the likeliest first; each can be tried with inputs."""
        seen: set[Arguments] = set()
        came = False
        whole = [(call["way"], _call(call)) for call in self.hints.get("init", ())]
        examples = [arguments for way, arguments in whole if way == "example"]
        calls = [arguments for way, arguments in whole if way != "example"]
        small = [Arguments(kwargs=tuple(self._small().items())), Arguments()] if not self.required else []
        configured = len(self.required) == 1 and self.required[0] in self._companions()  # a small one comes first
        for built in self._as_they_are([*examples, *small, *(calls if not configured else ())], seen):
            yield built
            came = True
        if not self.required:
            if came:
                return
            seen.discard(small[0])  # its failure is what is repaired
        yield from self._repaired(seen)
        yield from self._as_they_are(calls, seen)

    def _as_they_are(self, ways: Sequence[Arguments], seen: set[Arguments]) -> Iterator[Constructed]:
        """The modules that arguments give which are not changed."""
        for arguments in ways:
            if self.spent:
                return
            if arguments not in seen:
                seen.add(arguments)
                try:
                    yield self.make(arguments)
                except AttemptError as failure:
                    self._remember(failure, arguments)

    def _repaired(self, seen: set[Arguments]) -> Iterator[Constructed]:
        """Required arguments by their names, changed where a failure points; best-first by how far it came."""
        tries = _TRIES
        counter = itertools.count()
        choices = {name: self._choices(name) for name in self.required}
        heap: list[tuple[tuple[int, ...], int, dict[str, int], dict[str, str]]] = []
        heapq.heappush(heap, ((0,), next(counter), dict.fromkeys(choices, 0), self._small()))
        while heap and tries > 0 and not self.spent:
            _, _, picks, extra = heapq.heappop(heap)
            texts = {name: choices[name][place] for name, place in picks.items()}
            arguments = _ordered(self.parameters, {**texts, **extra})
            if arguments in seen:
                continue
            seen.add(arguments)
            tries -= 1
            try:
                yield self._make_traced(arguments)
            except AttemptError as failure:
                self._remember(failure, arguments)
                for fresh_picks, fresh_extra in self._changes(failure, picks, choices, extra):
                    heapq.heappush(heap, (failure.rank, next(counter), fresh_picks, fresh_extra))
            else:
                return  # another choice would fail alike

    def variants(self, built: Constructed, failure: AttemptError) -> Iterator[Constructed]:
        """The same with other values for the parameters that a failing forward names."""
        lacking = re.search(r"'types.SimpleNamespace' object has no attribute '(\w+)'", str(failure.cause))
        if lacking:
            kwargs = tuple((name, _with_attribute(text, lacking[1])) for name, text in built.arguments.kwargs)
            with contextlib.suppress(AttemptError):
                yield self.make(Arguments(built.arguments.args, kwargs))
            return
        words = [word for line in reversed(failure.lines) for word in _WORD.findall(line)]
        named = [w for w in dict.fromkeys(words) if w in self.parameters and not is_variadic(self.parameters[w])]
        if "normalized_shape" in str(failure.cause):
            named = [name for name in self.parameters if "norm" in name] + named
        if isinstance(failure.cause, IndexError):  # what is empty by default
            named = [name for name, p in self.parameters.items() if p.default in ((), [])] + named
        named += [name for name in self.required if name not in named]
        before = dict(built.arguments.kwargs)
        if wide := self._wide(failure, before):
            with contextlib.suppress(AttemptError):
                yield self.make(Arguments(built.arguments.args, _ordered(self.parameters, {**before, **wide}).kwargs))
        positional = len(built.arguments.args)
        layers = _LAYERS if _UNCALLABLE.search(str(failure.cause)) else ()  # what turned out to be called
        if layers:
            called = re.findall(r"self\.(\w+)\(", " ".join(failure.lines[-1:]))
            named = [name for name in self.parameters if any(map(partial(_alike, name), called))] + named
            named = list(dict.fromkeys(named))
        for name in [n for n in named if n not in list(self.parameters)[:positional]][:3]:
            for text in (*layers, *self._choices(name)[:6]):
                if text == before.get(name) or self.spent:
                    continue
                kwargs = _ordered(self.parameters, {**before, name: text}).kwargs
                with contextlib.suppress(AttemptError):
                    yield self._make_traced(Arguments(built.arguments.args, kwargs))

    def _make_traced(self, arguments: Arguments) -> Constructed:
        """Construct with settings that record what is asked of them, then with what they recorded."""
        if not any(text == SETTINGS for _, text in arguments.kwargs):
            return self.make(arguments)
        traced: dict[str, Settings] = {}
        names = dict(self.names.names)
        fresh = []
        for name, text in arguments.kwargs:
            if text == SETTINGS:
                traced[name] = names[f"_{name}_settings"] = Settings(self.names.value)
                text = f"_{name}_settings"
            fresh.append((name, text))
        original, self.names = self.names, Namespace(names)
        try:
            self._new(Arguments(arguments.args, tuple(fresh)))
        finally:
            self.names = original
        known = {name: settings.expression() for name, settings in traced.items()}
        return self.make(
            Arguments(arguments.args, tuple((name, known.get(name, text)) for name, text in arguments.kwargs))
        )

    def _changes(
        self,
        failure: AttemptError,
        picks: Mapping[str, int],
        choices: Mapping[str, Sequence[str]],
        extra: Mapping[str, str],
    ) -> Iterator[tuple[dict[str, int], dict[str, str]]]:
        texts = {name: choices[name][place] for name, place in picks.items()}
        if wide := self._wide(failure, texts):
            yield dict(picks), {**extra, **wide}
        words = [word for line in reversed(failure.lines) for word in _WORD.findall(line)]
        words += _WORD.findall(str(failure.cause))
        for name, text in with_one_more(failure, {**texts, **extra}, self.names, words):
            yield dict(picks), {**extra, name: text}
        lacking = re.findall(r"'(\w+)'", str(failure.cause)) if _LACKING.search(str(failure.cause)) else []
        if lacking and any(
            p.kind is p.VAR_KEYWORD for p in self.parameters.values()
        ):  # what a base wants to be passed on
            wanted = [name for name in lacking if name not in self.parameters and name not in extra]
            if wanted:
                yield dict(picks), {**extra, **{name: self._choices(name)[0] for name in wanted}}
        named = [word for word in dict.fromkeys(words) if word in picks]
        optional = [w for w in dict.fromkeys(words) if w in self.parameters and w not in picks]
        optional = [name for name in optional if not is_variadic(self.parameters[name])][:3]
        passed_on = [w for w in dict.fromkeys(words) if w in extra and w not in self.parameters]
        if "NoneType" in str(failure.cause):
            optional = [*optional, *(name for name in self._asked_for() if name not in extra)]
            for name, text in self._unset(words):
                yield dict(picks), {**extra, name: text}
        for name, text in self._listed(failure, named):
            yield dict(picks), {**extra, name: text}
        for name in named:
            yield from (({**picks, name: place}, dict(extra)) for place in _others(choices[name], picks[name]))
        for name in [*optional[:_OPTIONAL], *passed_on]:
            yield from (
                (dict(picks), {**extra, name: text}) for text in self._choices(name)[:4] if extra.get(name) != text
            )
        for name in [name for name in picks if name not in named]:
            for place in range(picks[name] + 1, len(choices[name])):
                yield {**picks, name: place}, dict(extra)
        if extra:
            yield dict(picks), {}

    @staticmethod
    def _wide(failure: AttemptError, texts: Mapping[str, str]) -> dict[str, str]:
        """Larger widths for the usual ones, where a part of one came to nothing: heads of 32 in half of 32 channels."""
        vanished = _VANISHED.search(failure.message)
        return {name: _WIDER for name, text in texts.items() if text == _WIDTH} if vanished else {}

    def _choices(self, name: str) -> tuple[str, ...]:
        found: list[str] = [*self._companions().get(name, ()), *self._compared(name), *self._keys(name)]
        parameter = self.parameters.get(name)
        if parameter is not None and parameter.default in ((), []):
            found += _FILLED
        for text in candidates(name, parameter.annotation if parameter is not None else inspect.Parameter.empty):
            found += self.blocks[:4] if text == BLOCK else [text]
        return tuple(dict.fromkeys(found))

    def _compared(self, name: str) -> list[str]:
        """The strings with which the class compares a parameter: `mode == "max"`, `self.mode in ["cat", "max"]`."""
        found = re.findall(
            rf"(?<![\w.])(?:self\.)?{name}(?:\.lower\(\))?\s*(?:[!=]=|(?:not )?in)\s*(.*)", self._source()
        )
        return list(dict.fromkeys(text for rest in found for text in _strings_of(rest)))[:_MOST_STRINGS]

    def _keys(self, name: str) -> list[str]:
        """The keys of tables in which the class, or a base, looks a parameter up: `self.settings[depth]`."""
        bases = "".join(_text_of(base, "__init__") for base in self.cls.__mro__ if "__init__" in vars(base))
        tables = re.findall(rf"(\w+)\[{name}\]|(?<![\w.]){name} (?:not )?in (?:set\()?(?:\w+\.)?(\w+)", bases)
        found: list[str] = []
        for table in dict.fromkeys(one or other for one, other in tables):
            value = getattr(self.cls, table, self.names.names.get(table))
            found += [repr(key) for key in value if isinstance(key, int | str)] if isinstance(value, dict) else []
        return found[:_MOST_STRINGS]

    def _source(self) -> str:
        """The text of the constructor and of forward."""
        if self.text is None:
            self.text = "".join(_text_of(self.cls, method) for method in ("__init__", "forward"))
        return self.text

    def _listed(self, failure: AttemptError, named: Sequence[str]) -> Iterator[tuple[str, str]]:
        """The strings that a message lists, for what its line names: they would do."""
        listed = [strings for found in _LISTED.findall(str(failure.cause)) if len(strings := _strings_of(found)) > 1]
        for strings in listed[:1]:
            yield from ((name, text) for name in named[:2] for text in (*strings[:3], f"[{strings[0]}]"))

    def _asked_for(self) -> list[str]:
        """The names that the constructor asks its `**kwargs` for: `kwargs.get("norm_layer")`."""
        rest = next((name for name, p in self.parameters.items() if p.kind is p.VAR_KEYWORD), "")
        try:
            text = inspect.getsource(self.cls.__init__) if rest else ""
        except (OSError, TypeError):
            text = ""
        asked = re.findall(rf"\b{rest}(?:\.(?:get|pop)\(|\[)\s*[\"'](\w+)[\"']", text) if text else []
        return [name for name in dict.fromkeys(asked) if name not in self.parameters]

    def _unset(self, words: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Default settings with one more field set: of those that are None and that the failing lines name."""
        for name, parameter in self.parameters.items():
            kind = type(parameter.default)
            if kind.__name__ in self.names.names and hasattr(kind, "__dataclass_fields__"):
                unset = [
                    f for f in kind.__dataclass_fields__ if getattr(parameter.default, f, 0) is None and f in words
                ]
                for field_name in unset:
                    for text in candidates(field_name)[:3]:
                        yield name, call_of(kind.__name__, {field_name: text})

    def _companions(self) -> dict[str, tuple[str, ...]]:
        """Expressions for parameters that take a class of the corpus, or an instance of one."""
        found: dict[str, tuple[str, ...]] = {}
        for item in self.hints.get("companions", ()):
            if item["method"] != "__init__" or item["name"] not in self.names.names:
                continue
            cls = self.names.names[item["name"]]
            texts = [item["name"]] if item["wants_class"] else instances(item["name"], cls)
            found[item["parameter"]] = (*found.get(item["parameter"], ()), *texts)
        return found

    def _remember(self, failure: AttemptError, arguments: Arguments) -> None:
        if self.worst is None or failure.progress > self.worst[0].progress:
            self.worst = (failure, arguments)


def _text_of(cls: type, method: str) -> str:
    """The text of a method; empty where it is not to be had."""
    try:
        return inspect.getsource(getattr(cls, method))
    except (OSError, TypeError, AttributeError):  # what asking for it may raise
        return ""


def instances(name: str, cls: Any) -> list[str]:
    """Expressions that construct a companion class."""
    if not isinstance(cls, type):
        return [name]
    if name.endswith(("Config", "Configuration", "Args", "Settings")) or hasattr(cls, "__dataclass_fields__"):
        return configuration_expressions(name, cls)
    parameters = parameters_of(cls)
    chosen = {key: candidates(key, parameters[key].annotation)[0] for key in required(parameters)}
    return [call_of(name, {key: text for key, text in chosen.items() if not text.startswith("@")})]


def _alike(name: str, other: str) -> bool:
    """Whether a parameter may be what became an attribute: one name in the other, or one beginning."""
    return name in other or other in name or name[:_BEGINNING] == other[:_BEGINNING]


def _strings_of(text: str) -> list[str]:
    """The string, or the strings of the list, that a text begins with, as expressions."""
    listed = re.match(r"[\[({]([^\])}]*)[\])}]", text)
    plain = re.match(r"'[^']*'|\"[^\"]*\"", text)
    found = re.findall(r"'([^']*)'|\"([^\"]*)\"", listed[1] if listed else plain[0] if plain else "")
    return [repr(one or other) for one, other in found if one or other]


def _others(choices: Sequence[str], place: int) -> Iterator[int]:
    return (other for other in range(len(choices)) if other != place)


def confirm(constructor: Constructor, arguments: Arguments) -> nn.Module:
    """The module, constructed for real, with a value in every parameter.

    Raises: AttemptError.
    """
    with unset_is_nan():
        module = constructor.make(arguments, real=True).module
    fill_unset(module)
    return module


def _with_attribute(text: str, name: str) -> str:
    """Settings with one more attribute."""
    if not text.startswith("types.SimpleNamespace(") or re.search(rf"\b{name}=", text):
        return text
    return f"{text[:-1]}, {name}={value_of(name)})".replace("(, ", "(")


def _call(call: Mapping[str, Any]) -> Arguments:
    return Arguments(tuple(call["args"]), tuple((name, text) for name, text in call["kwargs"]))


def _ordered(parameters: Mapping[str, inspect.Parameter], texts: Mapping[str, str]) -> Arguments:
    positional = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY and n in texts]
    names = [n for n in parameters if n in texts and n not in positional] + [n for n in texts if n not in parameters]
    return Arguments(tuple(texts[n] for n in positional), tuple((n, texts[n]) for n in names))


def only_on_meta(failure: AttemptError) -> bool:
    """Whether something failed because meta tensors hold no numbers."""
    text = str(failure.cause)
    return (
        isinstance(failure.cause, NotImplementedError)
        or "meta" in text
        or "_local_scalar_dense" in text
        or "numpy" in text
    )
