"""The parts of a closed file: its imports, and the rest, which is the author's text."""

import ast

from extract.migrate.project.writing import list_used_names, read_closed_file
from lemur_core.source.quality import find_undefined_names
from tests.builders import projects

NAMES = ["drop_path", "DropPath", "make_divisible", "Swish"]


def test_the_text_is_the_author_s() -> None:
    file = read_closed_file(projects.BLOCK)
    assert file.text in projects.BLOCK
    assert file.text.startswith("def drop_path")
    assert find_undefined_names(ast.parse(file.text)).keys() <= {item.bound for item in file.imports}


def test_names_that_expressions_use() -> None:
    assert list_used_names(["[f(c, size) for c in widths]", "lambda x: x + y", "nn.ReLU"]) == [
        "f",
        "nn",
        "size",
        "widths",
        "y",
    ]


def test_names_that_stand_for_nothing() -> None:
    text = projects.BLOCK.replace("WIDTH = 2", "WIDTH = 2\nLayerType = object")
    assert read_closed_file(text).globals == {"math", "torch", "nn", "WIDTH", "Residual", *NAMES}
