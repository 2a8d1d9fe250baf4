"""Packages of extras: a class that fails and says that it needs one is tried with what the extra of its source names.

For example, `einops`, where the metadata has `einops; extra == "image"` and the error is "No module named 'einops'",
or "pip install vis[image]".
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from extract.emit.emit import Emitted, Emitter
from extract.proofs.runtime import PROVIDED
from extract.proofs.validate import BlockVerdict
from extract.resolve.distributions import list_distributions, parse_requirements
from extract.resolve.index import FactsIndex
from extract.resolve.modules import CorpusIndex
from extract.stages import PendingBlock
from manifests.records import LEVELS

_EXTRA = re.compile(r"extra == \"([^\"]+)\"")
Extras = Mapping[str, Sequence[str]]  # requirements by the name of the extra


def find_lacking_extras(block: PendingBlock) -> Extras:
    """Return the extras that the error of a block asks for, each with the requirements that it names."""
    source, error = block.target.module.source, block.verdict.error
    if block.emitted is None or block.verdict.kind is None or error is None:
        return {}
    named = {canonicalize_name(text) for word in re.findall(r"\w+", error) for text in list_distributions(word)}
    named -= {*PROVIDED, *(canonicalize_name(Requirement(text).name) for text in block.emitted.requires)}
    extras: dict[str, list[str]] = {}
    for item in parse_requirements(source.requires):
        for name in _EXTRA.findall(str(item.marker or "")):
            if f"[{name}]" in error or canonicalize_name(item.name) in named:
                extras.setdefault(name, []).append(f"{item.name}{item.specifier}")
    return extras


def emit_with_extras(
    blocks: Sequence[PendingBlock], lacking: Mapping[str, Extras], library: CorpusIndex, index: FactsIndex
) -> dict[str, PendingBlock]:
    """Return blocks, by id, as if their sources required the extras that they lack."""
    needs: dict[str, list[str]] = {}
    for block in blocks:
        texts = [text for texts in lacking[block.target.block].values() for text in texts]
        needs.setdefault(block.target.module.source.name, []).extend(texts)
    sources = [
        replace(source, requires=tuple(dict.fromkeys([*source.requires, *needs.get(source.name, ())])))
        for source in library.sources
    ]
    extended = CorpusIndex(
        sources,
        library.load,
        distributions=library.distributions,
        load_outline=library.load_outline,
        extras=tuple(sorted({text for texts in needs.values() for text in texts})),
    )
    emitter = Emitter(extended, index)
    emitted = {}
    for block in blocks:
        module = extended.by_path[block.target.module.source.name, block.target.module.file.path]
        target = replace(block.target, module=module)
        outcome = emitter.emit(target)
        if isinstance(outcome, Emitted):
            emitted[block.target.block] = PendingBlock(target, outcome, BlockVerdict("emitted"))
    return emitted


def choose_form(block: PendingBlock, extras: Extras, other: PendingBlock | None) -> PendingBlock:
    """Return the form with the extras if it gets as far with them, else the block, with the extra as what it lacks."""
    if other is not None and LEVELS.index(other.verdict.level) >= LEVELS.index(block.verdict.level):
        return other
    block.verdict = replace(block.verdict, kind=f"missing_extra: {', '.join(extras)}")
    return block
