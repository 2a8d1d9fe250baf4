"""Rewrite files by a LibCST codemod; everything but the edited nodes is kept as written, with white space and comments.

Source: https://libcst.readthedocs.io/en/latest/codemods_tutorial.html
"""

from collections.abc import Callable, Mapping
from typing import Any

import libcst as cst
from libcst.metadata import ExpressionContextProvider, MetadataWrapper, PositionProvider

#: Maps a node, after the edits inside it, to its replacement.
Edit = Callable[[Any], cst.CSTNode]


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

    def lines(self, node: cst.CSTNode) -> range:
        """Return the lines of a node."""
        return range(self._positions[node].start.line, self._positions[node].end.line + 1)

    def context(self, node: cst.CSTNode) -> object:
        """Return how a name is used: loaded, stored or deleted; None for names that are not expressions."""
        return self._contexts.get(node)

    def text(self, node: cst.CSTNode) -> str:
        """Return the source text of a node."""
        return self.module.code_for_node(node)

    def apply_edits(self, edits: Mapping[cst.CSTNode, Edit]) -> str:
        """Return the text of the file after these edits."""
        return self.module.visit(ApplyEdits(edits)).code
