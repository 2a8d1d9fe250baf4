"""Conversations about blocks: `describe` asks for the facts of code, `write` for code with these facts.

Both hold code, so they are made of blocks alone whose license permits that in every part. The facts are those of the
spec: measured, or read from the graph.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from extract.specs.make import strip_header
from lemur_core.files import Json
from manifests.conversations import Chat, Draft, Skipped, Subject, chat_card, fence, finish
from manifests.options import MAX_TOKENS
from manifests.provenance.licenses import NOASSERTION
from manifests.provenance.parts import Parts, find_blocked_blocks, read_parts
from manifests.records import SPEC_CHAT_KINDS, Spec, SpecChatKind

_MEANINGS = {"describe": "the code of a module to its facts, as JSON", "write": "facts to the code of a module"}
_PROMISE = (
    "Facts are those of the specs: measured as the module ran, or read from its graph. Code is of modules of which"
    " every part is under a permissive license; `source`, `path`, lines, `swhid`, `license` and `notice` say whose."
)
_SYSTEM = "You read and write PyTorch modules. Facts of a module are stated as one JSON object."
_COLUMNS = ("block", "source", "path", "start_line", "end_line", "swhid", "license")
#: Facts of a spec that are stated; null ones are left out.
_FACTS = (
    "forward",
    "arguments",
    "cases",
    "keeps_shape",
    "downsampling",
    "changes_channels",
    "parameters",
    "layers",
    "train_differs",
    "identity_in_eval",
)


@dataclass(frozen=True, slots=True)
class CodeRights:
    """Rights to redistribute code, by the same rules as publishing. `blocked`: block -> licenses that forbid it."""

    blocked: Mapping[str, str]
    parts: Parts

    def notice(self, spec: Spec) -> str:
        """Return the origin and licenses of a block's code in one line."""
        lines = f"lines {spec.start_line}-{spec.end_line}"
        origin = f"{spec.name}: {spec.source} {spec.path}, {lines}, {spec.swhid}, {spec.license}"
        further = [
            f"{name} ({self.parts.source_licenses.get(name, NOASSERTION)})"
            for name in self.parts.block_sources.get(spec.block, ())
            if name != spec.source
        ]
        also = f"; with definitions from {', '.join(further)}" if further else ""
        return f"{origin}{also}; changed: imports resolved and definitions brought together"


def read_rights(folder: Path) -> CodeRights:
    """Read the rights to the code in a folder whose table and requirements are written.

    Raises: UserError if they cannot be read.
    """
    parts = read_parts(folder)
    return CodeRights({block: licenses for block, (_, licenses) in find_blocked_blocks(folder, parts).items()}, parts)


def build_chat(
    specs: Sequence[Spec],
    splits: Sequence[str],
    codes: Sequence[str],
    rights: CodeRights,
    max_tokens: int = MAX_TOKENS,
) -> Chat:
    """Return a conversation, or why there is none, for each block and kind, in order.

    Args: splits, codes: of the same blocks; a code is the minimized form, or the closed file if there is none.
    """
    drafts = [
        (Subject(split, stated_columns(spec)), kind, draft(spec, code, kind, rights))
        for spec, split, code in zip(specs, splits, codes, strict=True)
        for kind in SPEC_CHAT_KINDS
    ]
    return finish(drafts, "block", SPEC_CHAT_KINDS, max_tokens)


def stated_columns(spec: Spec) -> Json:
    """Return the columns of a block that its conversations have, too."""
    return {name: getattr(spec, name) for name in _COLUMNS}


def extraction_chat_card(chat: Chat) -> list[str]:
    """Return the section of an extraction's card about its conversations."""
    return chat_card(chat, _MEANINGS, _PROMISE)


def draft(spec: Spec, code: str, kind: SpecChatKind, rights: CodeRights) -> Draft | Skipped:
    """Return one conversation of a block, or why there is none."""
    if spec.block in rights.blocked:
        return Skipped("license", rights.blocked[spec.block])
    if not spec.cases or spec.arguments is None:
        return Skipped("not_run", f"it reached the level {spec.level}")
    if spec.algorithm is None:
        return Skipped("no_graph", "what it computes is not known")
    facts = dict(_list_facts(spec))
    lines = [f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in facts.items()]
    stated = fence("\n".join(["{", ",\n".join(lines), "}"]), "json")
    written = fence(strip_header(code).lstrip("\n"))
    columns = {"notice": rights.notice(spec)}
    if kind == "write":
        request = f"Write one self-contained PyTorch file whose class `{spec.name}` has these facts."
        return Draft(_SYSTEM, f"{request}\n\n{stated}", written, columns=columns)
    init, call = (
        ", ".join(f"{name} = {value}" for name, value in values.items()) or "no arguments"
        for values in (spec.arguments.init, spec.cases[0].inputs)
    )
    keys = ", ".join(f"`{key}`" for key in facts)
    request = f"Construct `{spec.name}` with {init}, call it with {call}, and state its facts with the keys {keys}."
    return Draft(_SYSTEM, f"{request}\n\n{written}", stated, columns=columns)


def _list_facts(spec: Spec) -> Iterator[tuple[str, object]]:
    """Yield the facts of a block that ran, by name."""
    stated = spec.model_dump(mode="json", exclude_none=True)
    yield "name", spec.name
    yield from ((name, stated[name]) for name in _FACTS if name in stated)
    if spec.algorithm is not None:
        computed = spec.algorithm.model_dump(mode="json", exclude_none=True)
        yield from ((name, computed[name]) for name in ("operations", "motifs", "draws") if computed[name])
