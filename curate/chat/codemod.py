"""Rewrite files by LibCST codemods, and choose the rewriting that the sandbox confirms.

Each kind of fault or change finds the nodes to rewrite and provides an edit for each; `ApplyEdits` is the only
transformer that applies them. Everything else is kept as written, including white space and comments.

Source: https://libcst.readthedocs.io/en/latest/codemods_tutorial.html
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata import ExpressionContextProvider, MetadataWrapper, PositionProvider

from curate.chat.design import skip_file
from curate.chat.network import ChatNetwork, Lab, Method, NetworkFacts
from curate.compute.runs import NetFailure
from manifests.conversations.conversation import Draft, Sampler, Skipped

#: Maps a node, after the edits inside it, to its replacement.
Edit = Callable[[Any], cst.CSTNode]

_METHODS: tuple[Method, ...] = ("measure", "train_step")


@dataclass(frozen=True, slots=True)
class Rewriting:
    """One way to rewrite a file."""

    kind: str
    edits: Mapping[cst.CSTNode, Edit] = field(repr=False)
    method: Method = "measure"  # how the sandbox tries the rewritten network


R = TypeVar("R", bound=Rewriting)


class ApplyEdits(cst.CSTTransformer):
    """Applies edits of single nodes."""

    def __init__(self, edits: Mapping[cst.CSTNode, Edit]) -> None:
        super().__init__()
        self._edits = edits

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """Return the edited node, if it has an edit."""
        updated = super().on_leave(original_node, updated_node)
        edit = self._edits.get(original_node)
        return updated if edit is None else edit(updated)


class EditedFile:
    """A file as a LibCST tree. Without statements if LibCST cannot parse it or reproduce it exactly."""

    def __init__(self, code: str) -> None:
        try:
            module = cst.parse_module(code)
        except (cst.ParserSyntaxError, UnicodeError):
            module = cst.Module([])
        # What LibCST does not give back exactly would be changed by an edit elsewhere.
        if module.code != code:
            module = cst.Module([])
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self.module = wrapper.module
        self._positions = wrapper.resolve(PositionProvider)
        self._contexts = wrapper.resolve(ExpressionContextProvider)

    def lines(self, *nodes: cst.CSTNode) -> range:
        """Return the lines from the start of the first node to the end of the last one."""
        return range(self._positions[nodes[0]].start.line, self._positions[nodes[-1]].end.line + 1)

    def context(self, node: cst.CSTNode) -> object:
        """Return how a name is used: loaded, stored or deleted; None for names that are not expressions."""
        return self._contexts.get(node)

    def text(self, node: cst.CSTNode) -> str:
        """Return the source text of a node."""
        return self.module.code_for_node(node)

    def apply_edits(self, edits: Mapping[cst.CSTNode, Edit]) -> str:
        """Return the text of the file after these edits."""
        return self.module.visit(ApplyEdits(edits)).code


def interleave(by_kind: Mapping[str, Sequence[R]], sampler: Sampler, purpose: str, count: int) -> list[R]:
    """Choose at most `count` rewritings in random order, each of another kind while there are unused kinds.

    Args: by_kind: rewritings by kind; kinds without any are left out.
    """
    kinds = sampler.shuffle([kind for kind, items in by_kind.items() if items], "kinds")
    orders = {kind: sampler.shuffle(by_kind[kind], f"{purpose} {kind}") for kind in kinds}
    rounds = max((len(order) for order in orders.values()), default=0)
    return [orders[kind][turn] for turn in range(rounds) for kind in kinds if turn < len(orders[kind])][:count]


def confirm_drafts(
    networks: Sequence[ChatNetwork],
    samplers: Sequence[Sampler],
    lab: Lab,
    what: str,
    plan: Callable[[ChatNetwork, Sampler, EditedFile], Sequence[R]],
    judge: Callable[[ChatNetwork, Sampler, R, str, NetworkFacts | NetFailure, int], Draft | Skipped],
    nothing: Skipped,
) -> list[Draft | Skipped]:
    """Draft, for each network, the first rewriting that the sandbox confirms, or return why the last one failed.

    Trees are large, so none is kept while the sandbox works: if the first rewriting of a file fails, the file is parsed
    and planned again.

    Args:
        what: what is tried, for the progress line.
        plan: returns the rewritings in the order in which they are tried.
        judge: returns a draft, or why there is none, for a network, its sampler, a rewriting (without its edits), the
            rewritten code, the sandbox's answer, and the number of tries.
        nothing: why a file without any rewriting has no draft.
    """
    rewritings: list[Draft | Skipped] = [skip_file(network) or nothing for network in networks]
    left = [index for index, network in enumerate(networks) if skip_file(network) is None]
    attempt = 0
    while left:
        tried: dict[int, tuple[R, str]] = {}
        for index in left:
            file = EditedFile(networks[index].code)
            planned = plan(networks[index], samplers[index], file)
            if len(planned) > attempt:
                rewriting = planned[attempt]
                tried[index] = replace(rewriting, edits={}), file.apply_edits(rewriting.edits)
        attempt += 1
        for method in _METHODS:
            indices = [index for index, (rewriting, _) in tried.items() if rewriting.method == method]
            experiments = [networks[index].experiment(tried[index][1]) for index in indices]
            for index, answer in zip(indices, lab.make(experiments, what, method), strict=True):
                rewritings[index] = judge(networks[index], samplers[index], *tried[index], answer, attempt)
        left = [index for index in tried if isinstance(rewritings[index], Skipped)]
    return rewritings
