"""Real calls of the classes of a source: its own models, examples and scripts run, and their parts are recorded."""

import functools
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Unpack

from extract.arguments.messages import NAME, RAISED_RATE, ZERO_RATES, CompanionCode, SourceRecording, Way, is_rate
from extract.proofs.sdists import list_metadata
from extract.resolve.discover import TargetClass
from extract.resolve.modules import FOUNDATION, Module
from extract.sources import PackageSource
from extract.sources.contents import is_test
from extract.specs.make import WorkingCalls
from lemur_core.files.markdown import make_visible
from lemur_core.sandbox import Limits
from lemur_core.sandbox.cached import Store
from lemur_core.sandbox.runtime import find_further
from lemur_core.sandbox.stage import SandboxOptions, SandboxStage, open_sandbox

ArgumentsFrom = Literal["default", "recorded", "guessed above", "call site", "search"]
_INTEGER = re.compile(r"(?<![\w.])\d+(?![\w.])")

_MAX_MODULES = 60  # imported besides those of the classes
_MAX_EXAMPLES = 200
_MAX_TESTS = 1000  # files
_MAX_ROUNDS = 6  # each with one more package
_REASON_CHARACTERS = 200
_MAX_TEXT_BYTES = 1 << 20
_FENCED = re.compile(r"^[ \t]*```[ \t]*(?:python|py|pycon)[^\n]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"^[ \t]*(?:>>>|\.\.\.) ?(.*)$", re.MULTILINE)
_DIRECTIVE = re.compile(
    r"^(?P<i>[ \t]*)\.\. (?:code-block|code|testcode)::[ \t]*(?:python|py|pycon)?[0-9]?[ \t]*\n"
    r"(?P<code>(?:[ \t]*\n|(?P=i)[ \t]+[^\n]*\n)+)",
    re.MULTILINE,
)
_OPTION = re.compile(r"^[ \t]+:[\w-]+:.*\n", re.MULTILINE)
_README = re.compile(r"(?i)readme(?:\.(?:md|markdown))?")


@dataclass(frozen=True, slots=True)
class NamedCalls(WorkingCalls):
    """The calls of a module.

    Args:
        names: the module of each name of the source in their expressions.
        way: how the arguments of the constructor were found.
        driver: the code that made the calls: tests, an example, a definition.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    way: Way = "recorded"
    driver: str = ""


@dataclass(frozen=True, slots=True)
class SourceCalls:
    """The calls of classes by their keys.

    Args:
        missing: why no module of them can be imported.
        absent: the module that one of them lacks; then nothing ran yet.
    """

    calls: Mapping[str, Sequence[NamedCalls]]
    missing: str | None = None
    absent: str | None = None


RECORD_SOURCE = SandboxStage[SourceCalls](
    "extract.recording.source_guest:record_source",
    SourceCalls,
    Limits(wall_seconds=3600, cpu_seconds=600, memory_bytes=8 * 2**30),
    retries=False,
    label="recorded calls",
    unit="sources",
)


@dataclass(frozen=True, slots=True)
class RecordedClass:
    """A class with its calls. Args: places: by name in the calls, the source and path that define it."""

    target: TargetClass
    calls: Sequence[NamedCalls]
    places: Mapping[str, tuple[str, str]]

    def add_to(
        self, hints: Mapping[str, Any], find_companions: Callable[[Sequence[str]], Sequence[CompanionCode]]
    ) -> dict[str, Any]:
        """Return hints with these calls first, and with the classes that they name: `find_companions` emits these."""
        init: list[dict[str, Any]] = []
        forward: list[dict[str, Any]] = []
        words: set[str] = set()
        for calls in self.calls:
            made = {"args": list(calls.init.args), "kwargs": dict(calls.init.kwargs)}
            for call, ways in ((calls.init, init), (calls.forward, forward)):
                if call is not None:
                    ways.append({"args": list(call.args), "kwargs": list(call.kwargs.items()), "way": calls.way})
                    words.update(word for text in (*call.args, *call.kwargs.values()) for word in NAME.findall(text))
            if calls.forward is not None:
                forward[-1]["init"] = made  # the constructor call that it belongs to
        known = {item["name"] for item in hints["companions"]}
        more = [item for item in find_companions(sorted(words & self.places.keys())) if item["name"] not in known]
        return {
            **hints,
            "init": [*init, *hints["init"]],
            "forward": [*forward, *hints["forward"]],
            "companions": [*hints["companions"], *more],
        }


def record_sources(
    targets: Sequence[TargetClass],
    folders: Mapping[str, Sequence[Path]],
    tests: Mapping[str, Path],
    list_naming: Callable[[Sequence[TargetClass]], Sequence[Module]],
    index: Store | None,
    missing: dict[str, str],
    provide: Callable[[PackageSource, str], Sequence[Path]],
    **sandbox: Unpack[SandboxOptions],
) -> Iterator[RecordedClass]:
    """Run the models of each source, with its package importable, and record the calls of these classes in them.

    Outcomes are cached by content. A source that cannot be imported, or ends its process, shows nothing.

    Args:
        targets: those at module level count.
        folders: from which the classes of each source can be imported.
        tests: the folder of tests and documents of a source, if they are elsewhere.
        list_naming: returns files of a source to import, since they use these classes, the most likely first.
        missing: to which is added, by source, why one shows nothing.
        provide: returns folders with a package that a source turns out to need.
    Returns: the classes for which there are calls, those nearest to the defaults first.
    Raises: UserError if no sandbox is available.
    """
    by_source: dict[str, list[TargetClass]] = {}
    for target in targets:
        if is_recorded(target):
            by_source.setdefault(target.module.source.name, []).append(target)
    requests = {}
    for name, members in by_source.items():
        source, paths, others = members[0].module.source, folders[name], tests.get(name)
        suites = _list_files(source, others, paths)
        requests[name] = SourceRecording(
            [*([str(others)] if others else ()), *map(str, paths)],
            list(map(_key, members)),
            [module.name for module in list_naming(members)][:_MAX_MODULES],
            list_examples(source, others, paths),
            sorted({file.relative_to(root).as_posix() for root, file in suites if is_test(file.name)})[:_MAX_TESTS],
            sorted({file.module.partition(".")[0] for file in source.files}),
            source.digest,
            str(list_pytest()[0]),
        )

    def provide_more(name: str, package: str) -> list[str]:
        return list(map(str, provide(by_source[name][0].module.source, package)))

    answers = _run(requests, index, provide_more, sandbox)
    for name, members in by_source.items():
        answer = answers[name]
        if answer.missing is not None:
            missing[name] = make_visible(answer.missing, _REASON_CHARACTERS)  # foreign code determines the text
        by_module = {file.module: file.path for file in members[0].module.source.files}
        for target in members:
            calls = answer.calls.get(_key(target))
            if calls:
                names = {word: module for item in reversed(calls) for word, module in item.names.items()}
                places = {word: (name, by_module[module]) for word, module in names.items() if module in by_module}
                yield RecordedClass(target, calls, places)


@functools.cache
def list_pytest() -> tuple[Path, ...]:
    """Return the folder that has pytest and what that needs, then what its links lead to: for these jobs alone."""
    needed = find_further("pytest")
    return needed.folder(), *map(Path, needed.links().values())


def _run(
    requests: Mapping[str, SourceRecording],
    index: Store | None,
    provide: Callable[[str, str], list[str]],
    sandbox: SandboxOptions,
) -> dict[str, SourceCalls]:
    """Return the calls of each source; those that lack a package run again with it, or with a replacement."""
    answers: dict[str, SourceCalls] = {}
    for turn in range(_MAX_ROUNDS):
        readable = [*list_pytest(), *(Path(folder) for request in requests.values() for folder in request.folders)]
        with open_sandbox(index, [RECORD_SOURCE], sandbox, folders=readable) as box:
            answers |= {
                reply.key: reply.answer or SourceCalls({}, reply.reason(_REASON_CHARACTERS))
                for reply in RECORD_SOURCE.run(box, requests)
            }
        again: dict[str, SourceRecording] = {}
        for name, request in requests.items():
            absent = answers[name].absent
            if not absent:
                continue
            more = [folder for folder in provide(name, absent) if folder not in request.folders]
            # A version that fits is found before one that cannot be loaded.
            is_there = any(Path(folder, absent).is_dir() for folder in request.folders)
            folders = [*more, *request.folders] if is_there else [*request.folders, *more]
            replaced = request.replaced if more else [*request.replaced, absent]
            last = turn == _MAX_ROUNDS - 2
            again[name] = replace(request, folders=folders, replaced=replaced, last=last)
        if not again:
            break
        requests = again
        sandbox = {**sandbox, "shared": None}  # which cannot read the new folders
    return answers


def is_recorded(target: TargetClass) -> bool:
    """Return whether the calls of a class can be recorded: nothing drives PyTorch, where users take long to find."""
    return target.stem.partition(".")[0] != FOUNDATION


def _key(target: TargetClass) -> str:
    return f"{target.stem}:{target.name}"


def list_examples(source: PackageSource, tests: Path | None, folders: Sequence[Path]) -> list[str]:
    """Return the Python code in the documents of a source: its README first, or the metadata of its release."""
    files = list_metadata(folders[0], source.name.partition("@")[0]) if folders else []
    folder = tests or (folders[0] if folders and source.kind != "package" else None)
    if folder is not None:
        files += sorted(path for path in folder.glob("*") if _README.fullmatch(path.name))
        files += sorted(path for path in folder.rglob("*") if path.suffix in (".md", ".rst"))
    codes = [code for file in dict.fromkeys(files) for code in _list_codes(_read_text(file))]
    return list(dict.fromkeys(codes))[:_MAX_EXAMPLES]


def _read_text(file: Path) -> str:
    try:
        return file.read_bytes()[:_MAX_TEXT_BYTES].decode("utf-8", "replace").replace("\r\n", "\n")
    except OSError:  # a description is optional
        return ""


def _list_codes(text: str) -> list[str]:
    codes = [textwrap.dedent(code) for code in _FENCED.findall(text)]
    codes += [textwrap.dedent(_OPTION.sub("", match["code"])).strip("\n") + "\n" for match in _DIRECTIVE.finditer(text)]
    # Without prompts.
    return ["\n".join(_PROMPT.findall(code)) if code.lstrip().startswith(">>>") else code for code in codes]


def _list_files(source: PackageSource, tests: Path | None, folders: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield the Python files of a project or release, each with the folder that its path is relative to."""
    tops = sorted({file.module.partition(".")[0] for file in source.files}) if source.kind == "package" else [""]
    for root, top in [*((folder, top) for folder in folders[:1] for top in tops), *([(tests, "")] if tests else ())]:
        yield from ((root, file) for file in (root / top).rglob("*.py"))


def find_origin(arguments: str, hints: Mapping[str, Any]) -> ArgumentsFrom:
    """Return where the arguments of a constructor that works are from.

    Args:
        arguments: those that work, as JSON.
        hints: of the class, with the calls that were recorded.
    """

    def write(call: Mapping[str, Any]) -> str:
        # Rates of dropout may have been raised from 0.
        args = ["0.0" if text == RAISED_RATE else text for text in call["args"]]
        rates = (*ZERO_RATES, RAISED_RATE)
        kwargs = {name: text for name, text in dict(call["kwargs"]).items() if not is_rate(name) or text not in rates}
        return json.dumps([args, kwargs], sort_keys=True)

    def is_own(stated: str) -> bool:
        # Large calls are made smaller.
        pairs = zip(*(map(int, _INTEGER.findall(text)) for text in (own, stated)), strict=False)
        return _INTEGER.sub("0", own) == _INTEGER.sub("0", stated) and all(small <= large for small, large in pairs)

    own = write(json.loads(arguments)["init"])
    ways = {item["way"] for item in hints["init"] if is_own(write(item))}
    if "recorded" in ways:
        return "recorded"
    if own == "[[], {}]":
        return "default"
    return "call site" if "call" in ways else "guessed above" if "guessed above" in ways else "search"
