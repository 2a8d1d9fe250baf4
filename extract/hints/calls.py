"""Sites and examples to calls: arguments put to their parameters, what is not known left out, the best first."""

import builtins
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from extract.hints.examples import Written
from extract.hints.model import Call
from extract.hints.signature import Parameter, Signature
from extract.hints.sites import Site
from extract.hints.values import ROOTS
from extract.modules import Module

_MOST = 8
_MOST_PARTIAL = 3
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\w|=(?!=))")
_STRING = re.compile(r"'[^']*'|\"[^\"]*\"")
_KNOWN = ROOTS | {"partial", "for", "in", "if", "else", "lambda", "not", "or", "and"} | frozenset(dir(builtins))
_WAYS = {"example": 0, "config": 1, "call": 2}


class Rated(NamedTuple):
    """A call with what its place in the order depends on."""

    call: Call
    lost: int  # arguments left out
    missing: int  # required parameters without a value
    far: int  # 0: in the class's own file, 1: in its source, 2: elsewhere
    place: Module | None = None  # the file that its names are from

    @property
    def texts(self) -> tuple[str, ...]:
        """Its expressions."""
        return (*self.call.args, *(text for _, text in self.call.kwargs))


def from_site(site: Site, signature: Signature | None, far: int, place: Module) -> Rated | None:
    """The call at a site; None where it does not fit the signature, or says nothing."""
    way = "call" if site.way == "call" else "config"
    if signature is None:
        args = site.args[: site.args.index(None)] if None in site.args else site.args
        kwargs = tuple((name, text) for name, text in site.kwargs if text is not None)
        lost = len(site.args) - len(args) + len(site.kwargs) - len(kwargs) + site.opened
        if lost and not args and not kwargs:
            return None
        return Rated(
            Call(tuple(t for t in args if t is not None), kwargs, way, lost > 0), lost, int(lost > 0), far, place
        )
    plain = [p for p in signature if p.kind == "plain"]
    if len(site.args) > len(plain) and not any(p.kind == "args" for p in signature):
        return None
    known = {p.name: p for p in signature if p.kind in {"plain", "keyword"}}
    named: dict[str, str | None] = dict(zip((p.name for p in plain), site.args, strict=False))
    rest = site.args[len(plain) :]
    takes_any = any(p.kind == "kwargs" for p in signature)
    named |= {name: text for name, text in site.kwargs if name in known or takes_any}
    lost = sum(text is None for text in named.values()) + site.opened
    values = {name: text for name, text in named.items() if text is not None}
    missing = sum(p.default is None and p.name not in values for p in known.values())
    call = _bound(values, rest, plain, known, way, missing > 0)
    if missing and not call.args and not call.kwargs:
        return None
    return Rated(call, lost, missing, far, place)


def _bound(
    values: dict[str, str],
    rest: Sequence[str | None],
    plain: Sequence[Parameter],
    known: dict[str, Parameter],
    way: str,
    partial: bool,
) -> Call:
    """Required arguments by position as far as there is no gap; the others by name, without the defaults."""
    args: list[str] = []
    for parameter in plain:
        if parameter.name not in values or (parameter.default is not None and not rest):
            break
        args.append(values.pop(parameter.name))
    if rest and len(args) == len(plain) and None not in rest:
        args += [text for text in rest if text is not None]
    kwargs = [(n, t) for n, t in values.items() if n not in known or _spaceless(known[n].default) != _spaceless(t)]
    return Call(tuple(args), tuple(kwargs), way, partial)


def _spaceless(text: str | None) -> str:
    return (text or "").replace(" ", "").replace('"', "'")


def from_example(written: Written, signature: Signature | None) -> Call | None:
    """The call of a docstring's example, as it stands; None where the signature has no place for it."""
    args, kwargs = written
    if signature is not None:
        names = {p.name for p in signature if p.kind in {"plain", "keyword"}}
        kinds = {p.kind for p in signature}
        if len(args) > sum(p.kind == "plain" for p in signature) and "args" not in kinds:
            return None
        if "kwargs" not in kinds and any(name not in names for name, _ in kwargs):
            return None
    return Call(args, kwargs, "example")


def best(rated: Iterable[Rated]) -> list[Rated]:
    """The calls most likely to work and cheap to make, distinct."""
    ordered = sorted(rated, key=_key)
    chosen: dict[tuple[tuple[str, ...], tuple[tuple[str, str], ...]], Rated] = {}
    partial = 0
    for item in ordered:
        key = (item.call.args, tuple(sorted(item.call.kwargs)))
        if key in chosen or (item.call.partial and partial == _MOST_PARTIAL):
            continue
        partial += item.call.partial
        chosen[key] = item
    complete = [item for item in chosen.values() if not item.call.partial]
    return [*complete[: _MOST - partial], *(item for item in chosen.values() if item.call.partial)]


def free_names(texts: Iterable[str]) -> tuple[str, ...]:
    """The names in expressions that are not the same in every file."""
    words = dict.fromkeys(word for text in texts for word in _WORD.findall(_STRING.sub("", text)))
    return tuple(word for word in words if word not in _KNOWN)


def _key(item: Rated) -> tuple[object, ...]:
    call = item.call
    texts = (*call.args, *(f"{name}={text}" for name, text in call.kwargs))
    weight = sum(min(int(number), 10**6) for text in texts for number in _NUMBER.findall(text))
    quality = (call.partial, item.missing, item.lost > 0, len(free_names(item.texts)))
    return (*quality, _WAYS[call.way], item.far, weight, len(texts), texts)
