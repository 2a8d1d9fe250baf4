"""Small faults, drawn by a seed from all that can be made in the product, that its tests have to notice.

    python -m benchmarks.mutants draw COUNT SEED FILE
    python -m benchmarks.mutants run FILE [--seconds S]

`draw` writes a JSON list. `run` makes each fault in this checkout in turn, which must have no other changes, runs the
nearest files of tests with `-x` (`list_tests`), and writes the verdict into the list at once: killed (by which test),
survived, or undecided after S CPU seconds. What has a verdict is not run again.
"""

import argparse
import ast
import contextlib
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
PACKAGES = ("extract", "curate", "lemur_core", "manifests", "train", "lemur")
_OTHER = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
    ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.Add: "-", ast.Sub: "+", ast.Mult: "//",
    ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "*", ast.BitOr: "&", ast.BitAnd: "|", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip

_NEAREST, _FIRST = 20, 5  # files of tests; to collect many takes longer than most faults

Edit = tuple[int, int, str]  # from and to, in bytes of the file, and the text instead


def list_edits(text: bytes) -> Iterator[Edit]:
    """Yield all faults that can be made in a file: an operator, a test, a number or a truth value, or no statement."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def between(left: ast.expr, operator: ast.AST, right: ast.expr) -> Iterator[Edit]:
        first, last = span(left)[1], span(right)[0]
        found = re.match(rb"[\s)]*(\S+(?: not| in)?)[\s(]+", text[first:last] + b" ")
        if found and type(operator) in _OTHER:
            yield first + found.start(1), first + found.end(1), _OTHER[type(operator)]

    def visit(node: ast.AST) -> Iterator[Edit]:
        match node:
            case ast.JoinedStr():  # Python 3.11 does not say where its parts stand
                return
            case ast.Compare(left, [operator], [right]) | ast.BinOp(left, operator, right):
                yield from between(left, operator, right)
            case ast.UnaryOp(ast.Not(), operand):
                yield span(node)[0], span(operand)[0], ""
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield *span(test), f"(not ({text[slice(*span(test))].decode()}))"
            case ast.BoolOp(operator, values):
                word = "or" if isinstance(operator, ast.And) else "and"
                yield *span(node), f" {word} ".join(f"({text[slice(*span(value))].decode()})" for value in values)
            case ast.Constant(bool() as value):
                yield *span(node), str(not value)
            case ast.Constant(int() as value):
                yield *span(node), str(value + 1)
            case ast.Expr(ast.Call()) | ast.Raise() | ast.AugAssign() | ast.Continue() | ast.Break():
                yield *span(node), "pass"
            case ast.Return(ast.expr()):
                yield *span(node), "return None"
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and name not in ("annotation", "returns"):
                    yield from visit(child)

    yield from visit(ast.parse(text))


def draw(count: int, seed: int) -> list[dict[str, object]]:
    """Draw faults: each that can be made anywhere in the product is as likely as another."""
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    texts = {str(path.relative_to(ROOT)): path.read_bytes() for path in files}
    possible = [(file, *edit) for file, text in texts.items() for edit in sorted(set(list_edits(text)))]
    faults: list[dict[str, object]] = []
    for file, first, last, new in sorted(random.Random(seed).sample(possible, count)):
        line, old = texts[file][:first].count(b"\n") + 1, texts[file][first:last].decode()
        faults.append({"file": file, "line": line, "offset": first, "old": old, "new": new, "verdict": None})
    return faults


@cache
def _read_imports() -> dict[str, list[str]]:
    """Read which files of product and tests import each of them, or name it as the guest of a sandbox."""
    names = [
        str(path.relative_to(ROOT)) for part in (*PACKAGES, "tests") for path in sorted((ROOT / part).rglob("*.py"))
    ]
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in names}
    importers: dict[str, list[str]] = {name: [] for name in names}
    for name in names:
        for node in ast.walk(ast.parse((ROOT / name).read_bytes())):
            match node:
                case ast.Import(aliases):
                    imported = [alias.name for alias in aliases]
                case ast.ImportFrom(module=str(module), names=aliases):
                    imported = [module, *(f"{module}.{alias.name}" for alias in aliases)]
                case ast.Constant(str() as text):
                    imported = [text.partition(":")[0]]
                case _:
                    continue
            for module in imported:
                if module in modules:
                    importers[modules[module]].append(name)
    return importers


def _read_words(*texts: str) -> set[str]:
    return {part for text in texts for word in re.findall(r"\w{3,}", text) for part in (word, *word.split("_"))}


def _read_suites(test: Path) -> list[str]:
    """Read a file of tests, and the suites in Markdown that it names."""
    text = test.read_text()
    suites = (test.parent / name for name in sorted(set(re.findall(r"\w+\.md", text))))
    return [text, *(path.read_text() for path in suites if path.exists())]


def list_tests(file: str, line: int) -> list[str]:
    """List the files with tests that are nearest to a line of FILE, the nearest first.

    Near is what has many rare words of the function around the line; nearer, what imports FILE or has its name, and
    what lies in the folder of its package or of its room.
    """
    distance, reached = {file: 0}, [file]
    for name in reached:
        for importer in _read_imports()[name]:
            if importer not in distance:
                distance[importer] = distance[name] + 1
                reached.append(importer)
    package, *folders, name = re.sub(r"(_guest)?\.py$", "", file).split("/")
    text = (ROOT / file).read_text()
    around = [
        (node.lineno, str(ast.get_source_segment(text, node)))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    own = _read_words(*max(around, default=(0, text))[1:])
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    words = {test: _read_words(*_read_suites(test)) for test in tests}
    counts = Counter(word for test in tests for word in words[test])
    rarity = {word: math.log((len(tests) + 1) / count) for word, count in counts.items()}

    def rate(test: Path) -> float:
        path = str(test.relative_to(ROOT))
        shared, all_of_it = (sum(rarity[word] for word in sorted(some)) for some in (own & words[test], words[test]))
        near = 1 + (distance.get(path) == 1) + 2 * (test.stem == f"test_{name}")
        near += (path.split("/")[1] == package) + (not set(re.split(r"[/_.]", path)).isdisjoint([*folders, name]))
        return (1 + shared) * near / math.sqrt(20 + all_of_it)

    return [str(test) for test in sorted(tests, key=rate, reverse=True)[:_NEAREST]]


def _sum_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of all that it started, those that have ended, too."""
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = each.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _run_tests(tests: Sequence[str], seconds: float) -> tuple[str, float]:
    """Run tests until one fails. Returns: the verdict, and the CPU seconds that it took."""
    command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # of this checkout, whatever is installed
    used = 0.0
    with tempfile.TemporaryFile("w+") as printed:
        process = psutil.Popen(
            command, cwd=ROOT, env=environment, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while process.poll() is None and used < seconds:
                time.sleep(0.5)
                used = max(used, _sum_seconds(process))
        finally:
            if running := process.poll() is None:  # with all processes of the tests
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        printed.seek(0)
        output = printed.read()
    if running or process.returncode in (0, 5):  # 5: all of them are slow
        return "undecided" if running else "survived", used
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return f"killed: {found[1] if found else output.strip().splitlines()[-1][:120]}", used


def try_fault(fault: dict[str, object], seconds: float) -> str:
    """Return the verdict on one fault."""
    path = ROOT / str(fault["file"])
    text, first, old = path.read_bytes(), int(str(fault["offset"])), str(fault["old"]).encode()
    assert text[first : first + len(old)] == old, f"{path}: not the file that the list was drawn from"
    tests = list_tests(str(fault["file"]), int(str(fault["line"])))
    path.write_bytes(text[:first] + str(fault["new"]).encode() + text[first + len(old) :])
    try:
        verdict, used = _run_tests(tests[:_FIRST], seconds)
        if verdict == "survived":
            verdict, _ = _run_tests(tests[_FIRST:], seconds - used)
    finally:
        path.write_bytes(text)
    return verdict


def main(given: Sequence[str] | None = None) -> None:
    """Draw, or run what has no verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    acts = parser.add_subparsers(dest="act", required=True)
    drawing, running = acts.add_parser("draw"), acts.add_parser("run")
    drawing.add_argument("count", type=int)
    drawing.add_argument("seed", type=int)
    running.add_argument("--seconds", type=float, default=150)
    for each in (drawing, running):
        each.add_argument("file", type=Path)
    chosen = parser.parse_args(given)
    if chosen.act == "draw":
        chosen.file.write_text(json.dumps(draw(chosen.count, chosen.seed), indent=1) + "\n")
        return
    faults = json.loads(chosen.file.read_text())
    for fault in faults:
        if fault["verdict"] is None:
            started = time.monotonic()
            fault["verdict"] = try_fault(fault, chosen.seconds)
            chosen.file.write_text(json.dumps(faults, indent=1) + "\n")
            shown = f"{fault['file']}:{fault['line']} {fault['old'][:30]!r} -> {fault['new'][:30]!r}"
            print(f"{shown}: {fault['verdict']} ({time.monotonic() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
