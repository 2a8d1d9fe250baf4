"""Files rewritten by LibCST codemods, and the rewriting that the sandbox confirms.

A kind of fault or of change finds the nodes that it rewrites and gives an edit for each; `ApplyEdits` is the one
transformer that makes them. Whatever is not edited stays as it was written, white space and comments included.

Source: https://libcst.readthedocs.io/en/latest/codemods_tutorial.html
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata import ExpressionContextProvider, MetadataWrapper, PositionProvider

from curate.chat.design import skip_file
from curate.chat.network import Answer, Lab, Method, Network
from manifests.conversations.conversation import Draft, Skipped
from manifests.conversations.sampling import Sampler

#: What becomes of a node, given as it is after the edits inside it.
Edit = Callable[[Any], cst.CSTNode]

_METHODS: tuple[Method, ...] = ("measure", "train_step")


@dataclass(frozen=True, slots=True)
class Rewriting:
    """One way to rewrite a file."""

    kind: str
    edits: Mapping[cst.CSTNode, Edit] = field(repr=False)
    method: Method = "measure"  # by which the sandbox tries the rewritten network


R = TypeVar("R", bound=Rewriting)


class ApplyEdits(cst.CSTTransformer):
    """Makes edits of single nodes."""

    def __init__(self, edits: Mapping[cst.CSTNode, Edit]) -> None:
        super().__init__()
        self._edits = edits

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """The edited node, if it has an edit."""
        updated = super().on_leave(original_node, updated_node)
        edit = self._edits.get(original_node)
        return updated if edit is None else edit(updated)


class SourceFile:
    """A file as a LibCST tree. One that LibCST cannot parse, or does not give back as it was, has no statements."""

    def __init__(self, code: str) -> None:
        try:
            module = cst.parse_module(code)
        except (cst.ParserSyntaxError, UnicodeError):
            module = cst.Module([])
        if module.code != code:
            module = cst.Module([])
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self.module = wrapper.module
        self._positions = wrapper.resolve(PositionProvider)
        self._contexts = wrapper.resolve(ExpressionContextProvider)

    def lines(self, *nodes: cst.CSTNode) -> range:
        """The lines from the start of the first node to the end of the last one."""
        return range(self._positions[nodes[0]].start.line, self._positions[nodes[-1]].end.line + 1)

    def context(self, node: cst.CSTNode) -> object:
        """Whether an expression is loaded, stored or deleted; None for names that are no expressions."""
        return self._contexts.get(node)

    def text(self, node: cst.CSTNode) -> str:
        """How a node is written."""
        return self.module.code_for_node(node)

    def edited(self, edits: Mapping[cst.CSTNode, Edit]) -> str:
        """The text of the file after these edits."""
        return self.module.visit(ApplyEdits(edits)).code


def interleaved(found: Mapping[str, Sequence[R]], sampler: Sampler, purpose: str, count: int) -> list[R]:
    """At most `count` rewritings in random order: each of another kind while there are kinds.

    Args: found: by kind; kinds without any are left out.
    """
    kinds = sampler.shuffled([kind for kind, items in found.items() if items], "kinds")
    orders = {kind: sampler.shuffled(found[kind], f"{purpose} {kind}") for kind in kinds}
    rounds = max((len(order) for order in orders.values()), default=0)
    return [orders[kind][turn] for turn in range(rounds) for kind in kinds if turn < len(orders[kind])][:count]


def confirmed(
    networks: Sequence[Network],
    samplers: Sequence[Sampler],
    lab: Lab,
    what: str,
    plan: Callable[[Network, Sampler, SourceFile], Sequence[R]],
    judge: Callable[[Network, Sampler, R, str, Answer, int], Draft | Skipped],
    nothing: Skipped,
) -> list[Draft | Skipped]:
    """For each network the draft about the first rewriting that the sandbox confirms, or why the last one gives none.

    Trees are large, so none is kept while the sandbox works: of those whose first rewriting fails, the file is parsed
    and planned again.

    Args:
        what: is tried, for the line of progress.
        plan: gives the rewritings in the order in which they are tried.
        judge: gives a draft or why there is none, of a network, its sampler, a rewriting (without its edits), the
            rewritten code, the sandbox's answer, and how many were tried.
        nothing: why a file without any rewriting gives no draft.
    """
    found: list[Draft | Skipped] = [skip_file(network) or nothing for network in networks]
    left = [place for place, network in enumerate(networks) if skip_file(network) is None]
    attempt = 0
    while left:
        tried: dict[int, tuple[R, str]] = {}
        for place in left:
            file = SourceFile(networks[place].code)
            planned = plan(networks[place], samplers[place], file)
            if len(planned) > attempt:
                rewriting = planned[attempt]
                tried[place] = replace(rewriting, edits={}), file.edited(rewriting.edits)
        attempt += 1
        for method in _METHODS:
            places = [place for place, (rewriting, _) in tried.items() if rewriting.method == method]
            experiments = [networks[place].experiment(tried[place][1]) for place in places]
            for place, answer in zip(places, lab.make(experiments, what, method), strict=True):
                found[place] = judge(networks[place], samplers[place], *tried[place], answer, attempt)
        left = [place for place in tried if isinstance(found[place], Skipped)]
    return found
