"""Writes into docs/api.md what its lines `<!-- ::: PATH -->` name: signatures, arguments and results, from docstrings.

    make api

Definitions are read from their files; nothing is imported. Examples in docstrings are tested, and not repeated here.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
_BLOCK = re.compile(r"^<!-- ::: ([\w.]+) -->\n(?:.*?^<!-- end -->\n)?", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Example):$", re.MULTILINE)
#: What a package exports from the ground floor.
_EXPORTED_BY = {"lemur_core": "lemur"}


def main() -> None:
    """Write the page."""
    PAGE.write_text(page_text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def page_text(page: str) -> str:
    """Return the page with its descriptions written anew."""
    return _BLOCK.sub(lambda match: f"<!-- ::: {match[1]} -->\n\n{describe(match[1])}\n<!-- end -->\n", page)


def describe(path: str) -> str:
    """Return the Markdown about one public name."""
    module, _, name = path.rpartition(".")
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    node = next(one for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == name)
    package = module.partition(".")[0]
    lines = [f"### `{_EXPORTED_BY.get(package, package)}.{name}`", ""]
    if isinstance(node, ast.FunctionDef):
        lines += ["```python", signature(node), "```", "", *documentation(node)]
        return "\n".join(lines).rstrip() + "\n"
    lines += documentation(node)
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and (not item.name.startswith("_") or item.name in _SPECIAL):
            is_property = any("property" in ast.unparse(one) for one in item.decorator_list)
            shown = (
                f".{item.name}: {ast.unparse(item.returns or ast.Name('None'))}".replace("'", "")
                if is_property
                else _call(item)
            )
            if first := (ast.get_docstring(item) or "").partition("\n")[0]:
                lines.append(f"- `{shown}`: {first}")
    return "\n".join(lines).rstrip() + "\n"


_SPECIAL = {"__getitem__": "[{}]", "__len__": "len()", "__iter__": "iteration"}


def _call(item: ast.FunctionDef) -> str:
    names = [one.arg for one in item.args.args[1:]]
    if item.name in _SPECIAL:
        return _SPECIAL[item.name].format(*names)
    return "." + signature(item, own=True).removeprefix("def ")


def signature(node: ast.FunctionDef, *, own: bool = False) -> str:
    """Return the line of a definition; on several lines where it is long. Args: own: of a method, without `self`."""
    missing: list[ast.expr | None] = [None] * (len(node.args.args) - len(node.args.defaults))
    parts = list(map(_argument, node.args.args, [*missing, *node.args.defaults]))[1 if own else 0 :]
    keywords = list(map(_argument, node.args.kwonlyargs, node.args.kw_defaults))
    if node.args.vararg:
        parts += [f"*{ast.unparse(node.args.vararg)}", *keywords]
    elif keywords:
        parts += ["*", *keywords]
    returns = (ast.unparse(node.returns) if node.returns else "None").strip("'")
    text = f"def {node.name}({', '.join(parts)}) -> {returns}"
    if own:
        return text
    if len(text) <= 100:
        return f"{text}: ..."
    inner = ",\n    ".join(parts)
    return f"def {node.name}(\n    {inner},\n) -> {returns}: ..."


def _argument(one: ast.arg, value: ast.expr | None) -> str:
    return (ast.unparse(one) + ("" if value is None else f" = {ast.unparse(value)}")).replace("'", '"')


def documentation(node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    """Yield the lines of a docstring: its text, then arguments, results and errors as lists."""
    first, *rest = _SECTION.split(ast.get_docstring(node) or "")
    yield from (*first.strip().split("\n"), "")
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        text = textwrap.dedent(body).strip()
        if title == "Example" or not text:
            continue
        if title == "Returns":
            yield from (f"Returns: {' '.join(text.split())}", "")
            continue
        yield from (f"{title}:", "")
        for entry in re.split(r"\n(?=\S)", text):
            name, _, about = " ".join(entry.split()).partition(": ")
            yield f"- `{name}`: {about}"
        yield ""


if __name__ == "__main__":
    main()
