"""Measure how readable the product is: one line a measure, its value beside the bar that it has to reach.

    python -m benchmarks.house [CHECKOUT]

Everything is read from the text of the files; nothing is imported or run.

The floors of a package are the longest chain of its entries. An entry is a file or a folder directly below the package,
an arrow is an import from one entry to another (imports in functions counted, imports for types alone not), and a
circle is one floor. By this definition extract had 17 floors, curate 15 and train 8 when the bars were set. Chains of
single modules are longer (extract 20, curate 16), because a folder counts once here, however deep it is.
"""

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.house_source import (
    Function,
    Graph,
    Source,
    count_floors,
    find_circles,
    import_graph,
    merge_nodes,
    read_product,
)

#: Label -> pattern. The words of an identifier are joined by blanks first: `_leak_group` is read as "leak group".
BANNED_WORDS = {
    **{word: word for word in ("told", "said", "given", "made", "found", "asked", "beside", "anew", "worst")},
    **{word: word for word in ("standing", "adopting", "walls", "house", "stays", "barred", "lean", "fidelity")},
    "fate": r"fates?",
    "climb": r"climb(?:s|ed|ing)?",
    "rung": r"rungs?",
    "donor": r"donors?",
    "host": r"hosts?",
    "site": r"sites?",
    "leak group": r"leak groups?",
    "stand-in": r"stand-?ins?|stand ins",
    "become of": r"(?:becomes?|became) of",
    "go on": r"(?:go|goes|going|went) on",
    "is no X": r"(?<!there )is no(?! longer)",
    "cannot be had": r"cannot be had",
    "tell nothing": r"tells? nothing",
}
CODE_ONLY = {"lean", "fidelity", "barred"}  # fine in prose
SENTENCES_MAY = {"found", "given", "made", "asked", "said", "stays"}  # as verbs; as names they hide what they name
MIGRATION_ONLY = {
    "host",
    "site",
}  # elsewhere a host is a computer, a site a place in code; in prose, the placeholder and option
#: Names and values of options, columns and documented parameters, which are contract.
CONTRACT = {"fidelity", "lean", "site", "sites", "standin", "standins", "a stand-in"}
EMITTED = Path("extract/standins")  # its text goes into the files of blocks, which stay as they are
BANNED_BEGINNINGS = ("What ", "Whether ", "Nothing, if")  # of docstrings
BANNED = re.compile(rf"\b(?:{'|'.join(f'({pattern})' for pattern in BANNED_WORDS.values())})\b", re.IGNORECASE)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")  # of an identifier

#: What a function may import by itself: slow to import, or part of an optional extra.
LATE_IMPORTS = {
    *("torch", "torchvision", "numpy", "datasets", "matplotlib", "transformers", "diffusers", "einops"),
    *("safetensors", "sklearn", "tokenizers", "tqdm", "yaml", "zstandard"),
}
IRREGULAR_PARTICIPLE = re.compile(
    "bound|broken|built|chosen|done|drawn|found|given|gone|held|hidden|kept|known|lost|made|meant|met|said|seen|sent|"
    "shown|spelt|taken|thrown|told|worn|written"
)
VERB_IN_ED = re.compile("bleed|breed|embed|exceed|feed|need|proceed|seed|shed|speed|succeed")
MAX_FUNCTION_LINES = 60

Row = tuple[str, str, str]


def measure_size(root: Path, sources: Sequence[Source]) -> Iterator[Row]:
    """Yield lines and files."""
    lines = sum(source.text.count("\n") for source in sources)
    test_lines = sum(path.read_text(encoding="utf-8").count("\n") for path in (root / "tests").rglob("*.py"))
    folder, fullest = Counter(source.path.parent.as_posix() for source in sources).most_common(1)[0]
    yield "lines of the product / of the tests", f"{lines:,} / {test_lines:,}", "<= 60,000 / <= 42,000"
    yield "files of the product", str(len(sources)), "<= 290"
    yield "files in the fullest folder", f"{fullest} ({folder}/)", "12"


def measure_imports(sources: Sequence[Source]) -> Iterator[Row]:
    """Yield floors, circles and imports inside functions."""
    graph = import_graph(sources)
    folders = {source.module: source.path.parent.as_posix() for source in sources}
    floors = [str(count_package_floors(graph, package)) for package in ("extract", "curate", "train")]
    yield "floors of extract / curate / train", " / ".join(floors), "<= 10 each"
    for name, circles in (
        ("folders", find_circles(merge_nodes(graph, folders.__getitem__))),
        ("modules", find_circles(graph)),
    ):
        sizes = ", ".join(str(len(circle)) for circle in sorted(circles, key=len, reverse=True))
        yield f"circles between {name}", f"{len(circles)} (of {sizes})" if circles else "0", "0"
    total = other = 0
    for source in sources:
        for node in source.import_statements:
            if node.lineno not in source.body_lines:
                continue
            roots = {name.split(".")[0] for name, _ in source.names_of_import(node)}
            total += 1
            other += bool(roots - LATE_IMPORTS)
    yield "imports inside functions", f"{total} ({other} without torch, datasets, ... and extras)", "<= 40"


def count_package_floors(graph: Graph, package: str) -> int:
    """Return the floors of one package, as the docstring of this file defines them."""
    inside = {module for module in graph if module.split(".")[0] == package}
    own = {module: graph[module] & inside for module in inside}
    return count_floors(merge_nodes(own, lambda module: ".".join(module.split(".")[:2])))


def measure_definitions(sources: Sequence[Source]) -> Iterator[Row]:
    """Yield untyped mappings, class names and names of functions."""
    nodes = [node for source in sources for node in source.nodes]
    loose = {"dict[str, Any]", "Mapping[str, Any]"}
    untyped = sum(isinstance(node, ast.Subscript) and ast.unparse(node) in loose for node in nodes)
    classes = Counter(node.name.lstrip("_") for node in nodes if isinstance(node, ast.ClassDef))
    names = [WORD.findall(function.name.lower()) or [""] for source in sources for function in source.functions]
    yield "dict[str, Any], Mapping[str, Any]", str(untyped), "<= 150"
    yield "class names with two meanings", str(sum(count > 1 for count in classes.values())), "0"
    yield "functions named by a participle", str(sum(is_participle(words[0]) for words in names)), ""
    yield "functions named x_of", str(sum(words[-1] == "of" for words in names)), ""
    functions = [function for source in sources for function in source.functions]
    long = sum((node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES for node in functions)
    yield f"functions over {MAX_FUNCTION_LINES} lines", str(long), "0"


def is_participle(word: str) -> bool:
    """Return whether a word is a participle that cannot also be an imperative, as `read` and `put` can."""
    if IRREGULAR_PARTICIPLE.fullmatch(word):
        return True
    return len(word) > 3 and word.endswith("ed") and not VERB_IN_ED.fullmatch(word)


def measure_words(root: Path, sources: Sequence[Source]) -> Iterator[Row]:
    """Yield the banned words: where names are defined, in docstrings and comments, in other strings."""
    uses = list(find_banned_words(root, sources))
    yield "banned words", f"{len(uses):,}", "0"
    for kind in ("names", "docstrings and comments", "strings"):
        yield f"  in {kind}", f"{sum(item.kind == kind for item in uses):,}", "0"
    common = Counter(item.word for item in uses).most_common(10)
    yield "  the ten commonest", ", ".join(f"{word} {count}" for word, count in common), ""


@dataclass(frozen=True, slots=True)
class BannedWord:
    """One use of a banned word: the file, the kind of text, and the name or the text itself."""

    path: Path
    kind: str
    word: str
    text: str


def find_banned_words(root: Path, sources: Sequence[Source]) -> Iterator[BannedWord]:
    """Yield each use of a banned word.

    Names of files, columns and options are contract: a string without a blank is taken for one.
    """
    columns = read_columns(root)
    for source in sources:
        local = MIGRATION_ONLY if "migrate" not in source.path.parts else set()
        docstrings, strings = split_strings(source)
        for name in defined_names(source):
            # Names on disk are contract. One of a single word is a column only where the records are declared.
            is_column = name in columns and ("_" in name or source.package == "manifests")
            if not is_column and name not in CONTRACT and source.path.parent != EMITTED:
                for word in banned_words(" ".join(WORD.findall(name)), local):
                    yield BannedWord(source.path, "names", word, name)
        prose = [*docstrings, *(comment.string for comment in source.comments)]
        for text in docstrings:
            for beginning in BANNED_BEGINNINGS:
                if text.startswith(beginning):
                    yield BannedWord(source.path, "docstrings and comments", f'"{beginning.strip()} ..."', text)
        for text in prose:
            for word in banned_words(text, CODE_ONLY | MIGRATION_ONLY | SENTENCES_MAY):
                yield BannedWord(source.path, "docstrings and comments", word, text)
        for text in strings:
            if " " in text.strip() and text not in CONTRACT:
                for word in banned_words(text, CODE_ONLY | MIGRATION_ONLY | SENTENCES_MAY):
                    yield BannedWord(source.path, "strings", word, text)


def banned_words(text: str, allowed: set[str]) -> list[str]:
    """Return the label of each banned word in a text."""
    labels = list(BANNED_WORDS)
    matches = (labels[(match.lastindex or 1) - 1] for match in BANNED.finditer(text))
    return [label for label in matches if label not in allowed]


def defined_names(source: Source) -> Iterator[str]:
    """Yield the name of each function, class, parameter, and variable or attribute that is set."""
    for node in source.nodes:
        if isinstance(node, Function | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def split_strings(source: Source) -> tuple[list[str], list[str]]:
    """Return the docstrings of a file, and its other strings."""
    texts = [node for node in source.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    bare = {node.value for node in source.nodes if isinstance(node, ast.Expr)}
    return [str(n.value) for n in texts if n in bare], [str(n.value) for n in texts if n not in bare]


def read_columns(root: Path) -> set[str]:
    """Return the columns of the published tables, from their schemas."""
    columns: set[str] = set()

    def collect(schema: object) -> None:
        if isinstance(schema, dict):
            properties = schema.get("properties")
            columns.update(properties if isinstance(properties, dict) else ())
            schema = list(schema.values())
        for part in schema if isinstance(schema, list) else ():
            collect(part)

    for path in sorted((root / "manifests" / "schemas").glob("*.json")):
        collect(json.loads(path.read_text(encoding="utf-8")))
    return columns


def measure_documentation(sources: Sequence[Source]) -> Iterator[Row]:
    """Yield public names with an example, comments in bodies, and sections of docstrings."""
    definitions = {
        f"{source.module}.{node.name}": node
        for source in sources
        for node in source.tree.body
        if isinstance(node, Function | ast.ClassDef)
    }
    public = [definitions.get(name) for source in sources for name in exported_names(source)]
    with_example = sum("Example" in (ast.get_docstring(node) or "") for node in public if node)
    yield "public names with an example", f"{with_example} of {len(public)}", "about 25"
    commented = sum(len({c.start[0] for c in source.comments} & source.body_lines) for source in sources)
    lines = sum(len(source.body_lines) for source in sources)
    yield "lines with a comment in 1,000 of functions' bodies", f"{1000 * commented / lines:.1f}", ">= 25"
    nodes = [node for name in sorted(imported_across(sources)) if isinstance(node := definitions.get(name), Function)]
    applies: dict[str, Callable[[Function], bool]] = {
        "Args": lambda node: bool(node.args.posonlyargs or node.args.args or node.args.kwonlyargs),
        "Returns": lambda node: node.returns is not None and ast.unparse(node.returns) != "None",
        # An exception of a function that it calls may deserve the section too, but cannot be seen here.
        "Raises": lambda node: any(isinstance(inner, ast.Raise) for inner in ast.walk(node)),
    }
    shares = []
    for section, is_needed in applies.items():
        needed = [node for node in nodes if is_needed(node)]
        written = sum(bool(re.search(rf"^\s*{section}:", ast.get_docstring(n) or "", re.MULTILINE)) for n in needed)
        shares.append(f"{written / max(len(needed), 1):.0%} of {len(needed)}")
    yield f"Args / Returns / Raises of {len(nodes)} cross-package functions", " / ".join(shares), "all"


def exported_names(source: Source) -> set[str]:
    """Return the full names that a package's own `__init__.py` imports and lists in `__all__`."""
    if source.path.name != "__init__.py" or len(source.path.parts) != 2:
        return set()
    lists = [n.value for n in source.nodes if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    listed = {name for node in lists for name in ast.literal_eval(node)}
    # Imports for types alone count here: such a package opens its modules when a name is needed.
    imports = {local: name for node in source.nodes for name, local in source.names_of_import(node)}
    return {imports.get(name, f"{source.module}.{name}") for name in listed}


def imported_across(sources: Sequence[Source]) -> set[str]:
    """Return the full names that a package imports from another one, also as `module.name`."""
    modules = {source.module for source in sources}
    names: set[str] = set()
    for source in sources:
        foreign = {local: name for name, local in source.imports if name.split(".")[0] != source.package}
        names.update(foreign.values())
        for node in source.nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = foreign.get(node.value.id)
                names.update([f"{module}.{node.attr}"] if module in modules else ())
    return {name for name in names if not name.rpartition(".")[2].startswith("_")}


def main(root: Path) -> None:
    """Print the table for one checkout."""
    sources = read_product(root)
    rows = [
        ("measure", "now", "to reach"),
        *measure_size(root, sources),
        *measure_imports(sources),
        *measure_definitions(sources),
        *measure_words(root, sources),
        *measure_documentation(sources),
    ]
    measure_width, value_width = (max(len(row[column]) for row in rows if row[2]) for column in (0, 1))
    for measure, value, bar in rows:
        print(f"{measure:<{measure_width}}  {value:<{value_width}}  {bar}".rstrip())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
