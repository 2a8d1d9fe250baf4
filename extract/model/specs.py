"""The specs of an extraction folder: read those of some blocks, and the computation graphs that they state."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path

from extract.model.blocks import find_block
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.serialization import deserialize
from lemur_core.graphs.symbolic import at
from manifests.folders.formats import EXTRACTION
from manifests.folders.reading import check_regular
from manifests.provenance import SPECS
from manifests.records import Spec


def read_specs(folder: Path, blocks: Collection[str] | None = None) -> Iterator[Spec]:
    """Yield the specs of a folder, in order.

    Args: blocks: ids of the blocks; all by default.
    Raises: UserError if the file is missing or damaged.
    """
    # A line is long, and parsing it costs more than searching it: only those that mention a block are parsed.
    markers = [json.dumps(block, ensure_ascii=False) for block in blocks or ()]
    with EXTRACTION.reading(folder):
        check_regular(folder / SPECS)
        with (folder / SPECS).open(encoding="utf-8") as lines:
            for line in lines:
                if blocks is None or any(marker in line for marker in markers):
                    spec = Spec.model_validate_json(line)
                    if blocks is None or spec.block in blocks:
                        yield spec


def read_spec(folder: Path, block: str) -> Spec | None:
    """Return the spec of a block; None if it has none.

    Raises: UserError if the file is missing or damaged.
    """
    return next(read_specs(folder, (block,)), None)


def graph_in(spec: Spec) -> Graph | None:
    """Return the graph of a block in eval mode, at the sizes of its arguments; None if its spec states none.

    Raises: UserError if the graph cannot be read.
    """
    if spec.algorithm is None:
        return None
    try:
        return at(deserialize(spec.algorithm.eval, spec.algorithm.sizes))
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{spec.block}: its graph cannot be read: {error}; extract it again") from error


def draw_block(folder: Path, wanted: str, path: Path) -> str:
    """Draw the computation graph of a block in eval mode with its recorded arguments into an SVG file.

    Returns: a message for the user.
    Raises: The same as `find_block`; UserError if the folder does not contain the graph of the block; UsageError if the
        file is not an `.svg`.
    """
    from lemur_core.describe.picture import check_picture, draw  # only drawing needs it

    check_picture(path)
    block = find_block(folder, wanted).row.block
    spec = read_spec(folder, block)
    graph = None if spec is None else graph_in(spec)
    if graph is None:
        raise UserError(f"{block}: what it computes is not known here, or was not published; choose another block")
    return f"{path}: {plural(draw(graph, path, block), 'box', 'boxes')}, what it computes in eval mode"
