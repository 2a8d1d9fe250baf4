"""The search for constructor arguments: what the corpus passes, then what names suggest, mended by what fails."""

import contextlib
import heapq
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from extract.probing.budget import Budget
from extract.probing.running import Mistake, Namespace, attempt, fill_unset, seed_all, size_of, unset_is_nan
from extract.probing.settings import PLACE, Settings, configuration_expressions
from extract.probing.values import SCALES, Scale, candidates, shrunk_arguments, value_of

_WORD = re.compile(r"[A-Za-z_]\w*")
_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
_TRIES = 40  # of one start at one scale
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
class Made:
    """A module that could be constructed."""

    arguments: Arguments
    module: nn.Module
    size: int
    on_meta: bool


@dataclass(slots=True)
class Constructor:
    """Constructs one class; keeps the mistake that came furthest."""

    cls: type[nn.Module]
    names: Namespace
    hints: Mapping[str, Any]
    budget: Budget
    blocks: tuple[str, ...]  # names of other module classes in the block's file
    worst: tuple[Mistake, Arguments] | None = None
    parameters: dict[str, inspect.Parameter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            self.parameters = dict(inspect.signature(self.cls).parameters)
        except (ValueError, TypeError):
            self.parameters = {}

    @property
    def required(self) -> list[str]:
        """Parameters without a default."""
        skipped = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return [n for n, p in self.parameters.items() if p.default is p.empty and p.kind not in skipped]

    def make(self, arguments: Arguments, *, real: bool = False) -> Made:
        """Construct: on meta tensors first, for the size; then for real, unless that is large and not asked for.

        Raises: Mistake.
        """
        self.budget.constructions -= 1
        size = 0
        if not real:
            try:
                with torch.device("meta"):
                    module = self._new(arguments)
                size = size_of(module)
                if size > LARGE:
                    return Made(arguments, module, size, on_meta=True)
            except Mistake as mistake:
                if not only_on_meta(mistake):
                    raise
        module = self._new(arguments)
        return Made(arguments, module, size_of(module), on_meta=False)

    def _new(self, arguments: Arguments) -> nn.Module:
        def action() -> Any:
            args = [self.names.value(text) for text in arguments.args]
            kwargs = {name: self.names.value(text) for name, text in arguments.kwargs}
            return self.cls(*args, **kwargs)

        seed_all()
        module = attempt(action)
        if not isinstance(module, nn.Module):
            raise Mistake(TypeError(f"the constructor returned a {type(module).__name__}, not a module"))
        return module

    def plans(self) -> Iterator[Made]:
        """Modules made in different ways, the likeliest first; each can be tried with inputs."""
        seen: set[Arguments] = set()
        for arguments in self._ways():
            if self.budget.constructions <= 0 or self.budget.late():
                return
            if arguments in seen:
                continue
            seen.add(arguments)
            try:
                made = self.make(arguments)
            except Mistake as mistake:
                self._remember(mistake, arguments)
                continue
            yield made
        for scale in SCALES if self.required else SCALES[:1]:
            for made in self._mended(scale, seen):
                yield made
            if self.budget.constructions <= 0 or self.budget.late():
                return

    def _ways(self) -> Iterator[Arguments]:
        """Arguments to try as they are: examples, small defaults, calls of the corpus."""
        calls = [(call["way"], _call(call), call.get("partial", False)) for call in self.hints.get("init", ())]
        whole = [(way, arguments) for way, arguments, partial in calls if not partial]
        yield from (arguments for way, arguments in whole if way == "example")
        if not self.required:
            yield Arguments(kwargs=tuple(shrunk_arguments(self.parameters).items()))
            yield Arguments()
        elif len(self.required) == 1 and self.required[0] in self._companions():
            return  # a configuration; `_mended` finds it
        yield from (arguments for way, arguments in whole if way != "example")

    def _mended(self, scale: Scale, seen: set[Arguments]) -> Iterator[Made]:
        """Required arguments by their names, changed where a failure points; best-first by how far it came."""
        partial: list[dict[str, str]] = [
            dict(call["kwargs"]) for call in self.hints.get("init", ()) if call.get("partial") and not call["args"]
        ]
        small = shrunk_arguments(self.parameters)
        starts: list[dict[str, str]] = [] if small and not self.required else [{}]
        starts += [p for p in partial[:2] if p]
        counter = itertools.count()
        for start in starts:
            tries = _TRIES
            choices = {name: self._choices(name, scale) for name in self.required if name not in start}
            heap: list[tuple[tuple[int, ...], int, dict[str, int], dict[str, str]]] = []
            heapq.heappush(heap, ((0, 0), next(counter), dict.fromkeys(choices, 0), start or dict(small)))
            while heap and tries > 0 and self.budget.constructions > 0 and not self.budget.late():
                _, _, picks, extra = heapq.heappop(heap)
                texts = {name: choices[name][place] for name, place in picks.items()}
                arguments = _ordered(self.parameters, {**extra, **texts})
                if arguments in seen:
                    continue
                seen.add(arguments)
                tries -= 1
                try:
                    made = self._make_traced(arguments, scale)
                except Mistake as mistake:
                    self._remember(mistake, arguments)
                    rank = (-mistake.progress[0], -mistake.progress[1])
                    for fresh_picks, fresh_extra in self._changes(mistake, picks, choices, extra, scale):
                        heapq.heappush(heap, (rank, next(counter), fresh_picks, fresh_extra))
                else:
                    yield made
                    break  # the next start, or scale: a variant of this one fails alike

    def variants(self, made: Made, mistake: Mistake) -> Iterator[Made]:
        """The same with other values for the parameters that a failing forward names."""
        lacking = re.search(r"'types.SimpleNamespace' object has no attribute '(\w+)'", str(mistake.error))
        if lacking:
            kwargs = tuple((name, _with_attribute(text, lacking[1])) for name, text in made.arguments.kwargs)
            with contextlib.suppress(Mistake):
                yield self.make(Arguments(made.arguments.args, kwargs))
            return
        words = [word for line in reversed(mistake.lines) for word in _WORD.findall(line)]
        named = [w for w in dict.fromkeys(words) if w in self.parameters and self.parameters[w].kind not in _VARIADIC]
        if "normalized_shape" in str(mistake.error):
            named = [name for name in self.parameters if "norm" in name] + named
        named += [name for name in self.required if name not in named]
        before = dict(made.arguments.kwargs)
        positional = len(made.arguments.args)
        for name in [n for n in named if n not in list(self.parameters)[:positional]][:3]:
            for text in self._choices(name, SCALES[0])[:6]:
                if text == before.get(name) or self.budget.constructions <= 0 or self.budget.late():
                    continue
                kwargs = _ordered(self.parameters, {**before, name: text}).kwargs
                with contextlib.suppress(Mistake):
                    yield self._make_traced(Arguments(made.arguments.args, kwargs), SCALES[0])

    def _make_traced(self, arguments: Arguments, scale: Scale) -> Made:
        """Construct with settings that record what is asked of them, then with what they recorded."""
        if not any(PLACE in text for _, text in arguments.kwargs):
            return self.make(arguments)
        traced: dict[str, Settings] = {}
        names = dict(self.names.names)
        fresh = []
        for name, text in arguments.kwargs:
            if text == PLACE:
                traced[name] = names[f"_{name}_settings"] = Settings(self.names.value, scale)
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
        mistake: Mistake,
        picks: Mapping[str, int],
        choices: Mapping[str, Sequence[str]],
        extra: Mapping[str, str],
        scale: Scale,
    ) -> Iterator[tuple[dict[str, int], dict[str, str]]]:
        words = [word for line in reversed(mistake.lines) for word in _WORD.findall(line)] + _WORD.findall(
            str(mistake.error)
        )
        named = [word for word in dict.fromkeys(words) if word in picks]
        for name in named + [name for name in picks if name not in named]:
            for place in range(len(choices[name])):
                if place != picks[name] and (place > picks[name] or name in named):
                    yield {**picks, name: place}, dict(extra)
        optional = [w for w in dict.fromkeys(words) if w in self.parameters and w not in picks and w not in extra]
        for name in optional[:3]:
            if self.parameters[name].kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
                for text in self._choices(name, scale)[:4]:
                    yield dict(picks), {**extra, name: text}
        if extra:
            yield dict(picks), {}

    def _choices(self, name: str, scale: Scale) -> tuple[str, ...]:
        found: list[str] = list(self._companions().get(name, ()))
        for text in candidates(name, self.parameters[name].annotation, scale):
            found += self.blocks[:4] if text == "@block" else [text]
        return tuple(dict.fromkeys(found))

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

    def _remember(self, mistake: Mistake, arguments: Arguments) -> None:
        if self.worst is None or mistake.progress > self.worst[0].progress:
            self.worst = (mistake, arguments)


def instances(name: str, cls: Any) -> list[str]:
    """Expressions that construct a companion class."""
    if not isinstance(cls, type):
        return [name]
    if hasattr(cls, "__members__"):
        return [f"{name}.{member}" for member in list(cls.__members__)[:3]]
    if name.endswith(("Config", "Configuration", "Args", "Settings")) or hasattr(cls, "__dataclass_fields__"):
        return configuration_expressions(name, cls)
    try:
        parameters = inspect.signature(cls).parameters
    except (ValueError, TypeError):
        return [f"{name}()"]
    texts = []
    for scale in SCALES[:2]:
        chosen = {
            key: candidates(key, parameter.annotation, scale)[0]
            for key, parameter in parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        }
        texts.append(
            f"{name}({', '.join(f'{key}={text}' for key, text in chosen.items() if not text.startswith('@'))})"
        )
    return list(dict.fromkeys(texts))


def confirm(constructor: Constructor, arguments: Arguments) -> nn.Module:
    """The module, constructed for real, with a value in every parameter.

    Raises: Mistake.
    """
    with unset_is_nan():
        module = constructor.make(arguments, real=True).module
    fill_unset(module)
    return module


def _with_attribute(text: str, name: str) -> str:
    """Settings with one more attribute."""
    if not text.startswith("types.SimpleNamespace(") or re.search(rf"\b{name}=", text):
        return text
    return f"{text[:-1]}, {name}={value_of(name, SCALES[0])})".replace("(, ", "(")


def _call(call: Mapping[str, Any]) -> Arguments:
    return Arguments(tuple(call["args"]), tuple((name, text) for name, text in call["kwargs"]))


def _ordered(parameters: Mapping[str, inspect.Parameter], texts: Mapping[str, str]) -> Arguments:
    positional = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY and n in texts]
    names = [n for n in parameters if n in texts and n not in positional] + [n for n in texts if n not in parameters]
    return Arguments(tuple(texts[n] for n in positional), tuple((n, texts[n]) for n in names))


def only_on_meta(mistake: Mistake) -> bool:
    """Whether something failed because meta tensors hold no numbers."""
    text = str(mistake.error)
    return (
        isinstance(mistake.error, NotImplementedError)
        or "meta" in text
        or "_local_scalar_dense" in text
        or "numpy" in text
    )
