"""Small faults, drawn by a seed, in files whose tests have to notice them.

    python -m benchmarks.mutants draw COUNT SEED FILE
    python -m benchmarks.mutants run FILE [--seconds S]

`draw` writes a JSON list: the same number of each file in `TESTS`. `run` makes each fault in this checkout in turn,
which must have no other changes, runs the tests of that file with `-x`, and writes the verdict into the list at once:
killed (by which test), survived, or undecided after S seconds. What has a verdict already is not run again.
"""

import argparse
import ast
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Files, and their tests: the nearest first, then the rest of their folder.
TESTS = {
    "lemur_core/similarity/minhash.py": "lemur_core/similarity/test_minhash.py lemur_core/similarity",
    "lemur_core/similarity/join.py": "lemur_core/similarity/test_index.py lemur_core/similarity",
    "lemur_core/similarity/index.py": "lemur_core/similarity/test_index.py lemur_core/similarity",
    "extract/resolve/modules.py": "extract/core/test_modules.py extract/core",
    "lemur_core/source/scopes.py": "lemur_core/source/test_scopes.py lemur_core/source",
    "lemur_core/graphs/recorder.py": "lemur_core/graphs/test_recorder.py lemur_core/graphs",
    "lemur_core/graphs/canonical.py": "lemur_core/graphs/test_same.py lemur_core/graphs",
    "lemur_core/graphs/identity.py": "lemur_core/graphs/test_same.py lemur_core/graphs",
    "lemur_core/graphs/memory.py": "lemur_core/graphs/test_recorder.py lemur_core/graphs",
    "lemur_core/sandbox/stage.py": "lemur_core/sandbox/test_stage.py lemur_core/sandbox",
    "lemur_core/sandbox/server/child.py": "lemur_core/sandbox/test_outcomes.py lemur_core/sandbox",
    "lemur_core/sandbox/server/confine.py": "lemur_core/sandbox/test_denials.py lemur_core/sandbox",
    "lemur_core/sandbox/server/loop.py": "lemur_core/sandbox/test_lifecycle.py lemur_core/sandbox",
    "lemur_core/sandbox/server/received.py": "lemur_core/sandbox/test_protocol.py lemur_core/sandbox",
    "train/model/recipe.py": "train/test_recipe.py train",
    "lemur/synthesis/confirm.py": "lemur/synthesis/test_steps.py lemur/synthesis",
    "curate/model/splits.py": "curate/test_split.py curate/test_guarantees.py",
    "curate/folder/verify.py": "curate/test_guarantees.py",
    "manifests/publish/publishing.py": "manifests/publish/test_publish.py manifests/publish",
    "manifests/publish/staged.py": "manifests/publish/test_staged.py manifests/publish",
}
_OTHER = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
    ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.Add: "-", ast.Sub: "+", ast.Mult: "//",
    ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "*", ast.BitOr: "&", ast.BitAnd: "|", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip

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
    """Draw faults: as many of each file as its share of COUNT, in the order of `TESTS`."""
    chosen = random.Random(seed)
    faults: list[dict[str, object]] = []
    for number, file in enumerate(TESTS):
        text = (ROOT / file).read_bytes()
        share = (number + 1) * count // len(TESTS) - number * count // len(TESTS)
        for first, last, new in sorted(chosen.sample(sorted(set(list_edits(text))), share)):
            line = text[:first].count(b"\n") + 1
            old = text[first:last].decode()
            faults.append({"file": file, "line": line, "offset": first, "old": old, "new": new, "verdict": None})
    return faults


def try_fault(fault: dict[str, object], seconds: float) -> str:
    """Return the verdict on one fault."""
    path = ROOT / str(fault["file"])
    text, first, old = path.read_bytes(), int(str(fault["offset"])), str(fault["old"]).encode()
    assert text[first : first + len(old)] == old, f"{path}: not the file that the list was drawn from"
    tests = [f"tests/{name}" for name in TESTS[str(fault["file"])].split()]
    command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    path.write_bytes(text[:first] + str(fault["new"]).encode() + text[first + len(old) :])
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return "undecided"
    finally:
        path.write_bytes(text)
        if process.returncode is None:  # with all processes of the tests
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not process.returncode:
        return "survived"
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return f"killed: {found[1] if found else output.strip().splitlines()[-1][:120]}"


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
