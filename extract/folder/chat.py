"""Conversations about blocks: `describe` asks for the facts of code, `write` for code with these facts.

Both hold code, so they are made of blocks alone whose license permits that in every part. The facts are those of the
spec: measured, or read from the graph.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from extract.proofs.minimize import LEFT_OUT
from extract.specs.make import strip_header
from lemur_core.files import Json
from manifests.conversations import Chat, Draft, Skipped, Subject, chat_card, fence, finish
from manifests.provenance import header_lines
from manifests.provenance.licenses import NOASSERTION, NOTICE
from manifests.provenance.parts import Parts, find_blocked_blocks, read_parts
from manifests.records import SPEC_CHAT_KINDS, Spec, SpecChatKind, SpecChatRow

_MEANINGS = {"describe": "the code of a module to its facts, as JSON", "write": "facts to the code of a module"}
_PROMISE = (
    "Facts are those of the specs: measured as the module ran, or read from its graph. Code is of modules of which"
    " every part is under a permissive license; `source`, `path`, lines, `swhid`, `license` and `notice` say whose."
)
_SYSTEM = "You read and write PyTorch modules. Facts of a module are stated as one JSON object."
#: Facts of a spec that are stated; null ones are left out.
_FACTS = (
    *("forward", "arguments", "cases", "keeps_shape", "downsampling", "changes_channels"),
    *("parameters", "layers", "train_differs", "identity_in_eval"),
)


def build_chat(
    folder: Path, specs: Sequence[Spec], splits: Sequence[str], forms: Sequence[Sequence[str | None]], max_tokens: int
) -> Chat:
    """Return a conversation, or why there is none, for each block and kind, in order.

    Args:
        folder: its table and requirements are written; they say what may be redistributed, as in publishing.
        splits, forms: of the same blocks. The first of the forms is shown that has no stubs where code was left out.
    Raises: UserError if the requirements cannot be read.
    """
    parts = read_parts(folder)
    blocked = {block: licenses for block, (_, licenses) in find_blocked_blocks(folder, parts).items()}
    drafts = []
    for spec, split, codes in zip(specs, splits, forms, strict=True):
        code = next((code for code in codes if code and LEFT_OUT not in code), "")
        shared = {name: getattr(spec, name) for name in SpecChatRow.model_fields if name in Spec.model_fields}
        texts, columns = _write_texts(spec, code, blocked.get(spec.block)), _notice(spec, parts, code)
        for kind in SPEC_CHAT_KINDS:
            draft = texts if isinstance(texts, Skipped) else Draft(_SYSTEM, *texts[kind], columns=columns)
            drafts.append((Subject(split, shared), kind, draft))
    return finish(drafts, "block", SPEC_CHAT_KINDS, max_tokens)


def extraction_chat_card(chat: Chat) -> list[str]:
    """Return the section of an extraction's card about its conversations."""
    return chat_card(chat, _MEANINGS, _PROMISE)


def _notice(spec: Spec, parts: Parts, code: str) -> Json:
    """Return the origin, licenses and copyrights of a block's code in one line, as a column."""
    lines = f"lines {spec.start_line}-{spec.end_line}"
    origin = f"{spec.name}: {spec.source} {spec.path}, {lines}, {spec.swhid}, {spec.license}"
    further = [
        f"{name} ({parts.source_licenses.get(name, NOASSERTION)})"
        for name in parts.block_sources.get(spec.block, ())
        if name != spec.source
    ]
    also = f"; with definitions from {', '.join(further)}" if further else ""
    also += "".join(f"; {line.removeprefix(NOTICE)}" for line in header_lines(code) if line.startswith(NOTICE))
    return {"notice": f"{origin}{also}; changed: imports resolved and definitions brought together"}


def _write_texts(spec: Spec, code: str, forbidding: str | None) -> Mapping[SpecChatKind, tuple[str, str]] | Skipped:
    """Return request and answer of each kind, or why there are none. Args: forbidding: licenses of the code."""
    if forbidding is not None:
        return Skipped("license", forbidding)
    if not spec.cases or spec.arguments is None:
        return Skipped("not_run", f"it reached the level {spec.level}")
    if spec.algorithm is None:
        return Skipped("no_graph", "what it computes is not known")
    if not code:  # the source holds a lean form
        return Skipped("residue", "its file has stubs of a lean form")
    facts = dict(_list_facts(spec))
    lines = [f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in facts.items()]
    stated = fence("\n".join(["{", ",\n".join(lines), "}"]), "json")
    written = fence(strip_header(code).lstrip("\n"))
    init, call = (
        ", ".join(f"{name} = {value}" for name, value in values.items()) or "no arguments"
        for values in (spec.arguments.init, spec.cases[0].inputs)
    )
    keys = ", ".join(f"`{key}`" for key in facts)
    describe = f"Construct `{spec.name}` with {init}, call it with {call}, and state its facts with the keys {keys}."
    write = f"Write one self-contained PyTorch file whose class `{spec.name}` has these facts."
    return {"describe": (f"{describe}\n\n{written}", stated), "write": (f"{write}\n\n{stated}", written)}


def _list_facts(spec: Spec) -> Iterator[tuple[str, object]]:
    """Yield the facts of a block that ran, by name."""
    stated = spec.model_dump(mode="json", exclude_none=True)
    yield "name", spec.name
    yield from ((name, stated[name]) for name in _FACTS if name in stated)
    if spec.algorithm is not None:
        computed = spec.algorithm.model_dump(mode="json", exclude_none=True)
        yield from ((name, computed[name]) for name in ("operations", "motifs", "draws") if computed[name])
