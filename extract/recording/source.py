"""Real calls of the classes of a source: its own models, examples and scripts run, and their parts are recorded."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from extract.proofs.runtime import original_folders
from extract.proofs.validate import ReportedCalls
from extract.recording.blocks import RecordedCalls
from extract.recording.messages import SourceRecording
from extract.resolve.discover import TargetClass
from extract.sources import PackageSource
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible
from lemur_core.sandbox import META_PRELOAD, Limits
from lemur_core.sandbox.cached import CachedSandbox, Store
from lemur_core.sandbox.stage import Retries, SandboxStage

_MAX_MODULES = 60  # imported besides those of the classes
_MAX_EXAMPLES = 40
_REASON_CHARACTERS = 200
_MAX_TEXT_BYTES = 1 << 20
_FENCED = re.compile(r"^[ \t]*```[ \t]*(?:python|py|pycon)[^\n]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"^[ \t]*(?:>>>|\.\.\.) ?(.*)$", re.MULTILINE)
_README = re.compile(r"(?i)readme(?:\.(?:md|markdown))?")


@dataclass(frozen=True, slots=True)
class NamedCalls(ReportedCalls):
    """The calls of a module, and the module of each name of the source in their expressions."""

    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceCalls:
    """The calls of classes by their keys; `missing`: why no module of them can be imported."""

    calls: Mapping[str, Sequence[NamedCalls]]
    missing: str | None = None

    def __post_init__(self) -> None:
        """Shorten the reason, and make control characters visible: foreign code determines the text."""
        if self.missing is not None:
            object.__setattr__(self, "missing", make_visible(self.missing, _REASON_CHARACTERS))


RECORD_SOURCE = SandboxStage[SourceCalls](
    "extract.recording.source_guest:record_source",
    SourceCalls,
    Limits(wall_seconds=3600, cpu_seconds=300, memory_bytes=8 * 2**30),
    Retries.NONE,
    "record",
    "sources",
)


@dataclass(frozen=True, slots=True)
class RecordedClass:
    """A class with its calls. Args: places: by name in the calls, the source and path that define it."""

    target: TargetClass
    calls: RecordedCalls
    places: Mapping[str, tuple[str, str]]


def record_sources(
    targets: Sequence[TargetClass], index: Store | None, notes: list[str], *, unsafe: bool = False
) -> Iterator[RecordedClass]:
    """Run the models of each source, with its package importable, and record the calls of these classes in them.

    Outcomes are cached by content. A source that cannot be imported, or ends its process, shows nothing.

    Args:
        targets: those at module level count.
        notes: to which is added why a source shows nothing.
    Returns: the classes for which there are calls, the smallest calls first.
    Raises: UserError if no sandbox is available.
    """
    by_source: dict[str, list[TargetClass]] = {}
    for target in targets:
        if not target.outer:
            by_source.setdefault(target.module.source.name, []).append(target)
    for members in by_source.values():
        source = members[0].module.source
        folders = original_folders(source)
        request = SourceRecording(
            list(map(str, folders)),
            list(map(_key, members)),
            _list_mentioning(source, frozenset(target.name for target in members)),
            list_examples(source, folders),
            source.digest,
        )
        entries = [RECORD_SOURCE.guest]
        with CachedSandbox(
            index, workers=1, readable=list(folders), unsafe=unsafe, preload=META_PRELOAD, entries=entries
        ) as box:
            (reply,) = RECORD_SOURCE.run(box, {source.name: request})
        answer = reply.answer or SourceCalls({}, reply.reason(_REASON_CHARACTERS))
        if answer.missing is not None:
            notes.append(f"{source.name}: its own models were not run: {answer.missing}")
        paths = {file.module: file.path for file in source.files}
        for target in members:
            calls = answer.calls.get(_key(target))
            if calls:
                names = {name: module for item in reversed(calls) for name, module in item.names.items()}
                places = {name: (source.name, paths[module]) for name, module in names.items() if module in paths}
                yield RecordedClass(target, RecordedCalls(calls), places)


def _key(target: TargetClass) -> str:
    return f"{target.stem}:{target.name}"


def _list_mentioning(source: PackageSource, names: frozenset[str]) -> list[str]:
    """Return the modules whose text has one of these names, those with the most of them first."""
    pattern = re.compile(rb"[A-Za-z_]\w*")
    counts = {
        file.module: len({word.decode() for word in pattern.findall(source.read(file))} & names)
        for file in source.files
    }
    mentioning = sorted((-count, module) for module, count in counts.items() if count)
    return [module for _, module in mentioning][:_MAX_MODULES]


def list_examples(source: PackageSource, folders: Sequence[Path]) -> list[str]:
    """Return the Python code in the description of a source: of its README, or of the metadata of its release."""
    name = source.name.partition("@")[0].replace("-", "_").lower()
    files = [source.root / item for item in sorted(_list_names(source.root)) if _README.fullmatch(item)]
    for folder in folders[:1]:
        files += [folder / item / "METADATA" for item in sorted(_list_names(folder)) if _is_metadata(item, name)]
    texts = [_read_text(file) for file in files]
    codes = [code for text in texts for code in _FENCED.findall(text)]
    return [_strip_prompts(code) for code in codes][:_MAX_EXAMPLES]


def _list_names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror}") from error


def _is_metadata(item: str, name: str) -> bool:
    return item.endswith(".dist-info") and item.partition("-")[0].replace("-", "_").lower() == name


def _read_text(file: Path) -> str:
    try:
        return file.read_bytes()[:_MAX_TEXT_BYTES].decode("utf-8", "replace").replace("\r\n", "\n")
    except OSError:  # a description is optional
        return ""


def _strip_prompts(code: str) -> str:
    lines = _PROMPT.findall(code)
    return "\n".join(lines) if code.lstrip().startswith(">>>") else code
