"""`complete`: a file with a gap, and the missing part; inserting it restores the file, without residue, byte for byte.

A gap is cut out by lines, not rewritten: LibCST prints no block without statements.
"""

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from curate.chat.decided import find_reached, find_with_idle_modules, is_decided
from curate.chat.design import BLOCK_SYSTEMS, SYSTEMS, call_line, list_counts, stage_lines, trainable
from curate.chat.network import ChatNetwork
from lemur_core.files.markdown import plural
from lemur_core.source.text import parse_code
from manifests.conversations.conversation import LINE, MARK, Draft, Sampler, Skipped, fence, put_back
from manifests.records import SPLITS

_REQUESTS = (
    "Complete this file: {what} is missing where it says `{mark}`.",
    "In the file below, {what} was removed and marked with `{mark}`. Write it.",
    "Fill in {what} at the line `{mark}`.",
    "The line `{mark}` stands for {what}. Give the code that belongs there.",
)
_RULE = (
    "Answer with the missing lines alone, the first one without indentation; each line is then indented like the marked"
    " one."
)
_ANSWERS = ("", "The missing part is:\n\n", "This belongs there:\n\n")
_NO_PART = "no body of three lines or more, but that of Net, can be cut out and put back exactly"
_REQUESTED_EARLIER = "every part that can be cut out is asked for in an earlier split"
_NOT_STATED = "the rest of the file and measurements do not tell all of any part that can be cut out"

#: Bodies that are similar in most networks; chosen only if there is no other.
_USUAL = frozenset({"learn", "train_setup", "body supported_hyperparameters"})

_TRAINING = frozenset({"body Net.learn", "body Net.train_setup"})
_MIN_LINES = 3
_MOST_NUMBERS = 3  # that the rest of the file does not hold, and measurements decide
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")


@dataclass(frozen=True, slots=True)
class Gap:
    """A file with a marked gap, and the missing part, without the indentation of the marked line.

    A part is `plain` if everything in it can be inferred from the rest: no docstring, no number but 0, 1 and 2, no text
    with white space, such as a message, and none that the rest of the file does not contain. It is `numbered` if it
    holds more numbers that the rest does not than measurements decide: those of a whole constructor are only bounded.
    It is `decided` if the network reaches it, and it holds nothing that neither the rest nor measurements show.
    """

    what: str  # for example: the body of method `forward` of class `Net`
    name: str  # for example: body Net.forward
    text: str
    part: str
    plain: bool
    numbered: bool
    decided: bool


def completions(networks: Sequence[ChatNetwork], samplers: Sequence[Sampler]) -> list[Draft | Skipped]:
    """Draft a request to fill a gap for each record; nothing is run for it.

    A part requested in an earlier split is not requested again, in the order train, validation, test.
    """
    # Counts the records with each part, and with each file with a gap: a repeated one has no unique answer.
    holders: Counter[bytes] = Counter()
    for network in networks:
        holders.update({_key(text) for gap in gaps(network.code) for text in (gap.text, gap.part)})
    requested: dict[bytes, str] = {}  # part -> the first split that requests it
    results: dict[int, Draft | Skipped] = {}
    for index in sorted(range(len(networks)), key=lambda index: SPLITS.index(networks[index].split)):
        network = networks[index]
        choices = gaps(network.code)
        alone = [gap for gap in choices if holders[_key(gap.text)] == 1]
        measured = network.facts is not None
        # No measurement shows the numbers of training.
        clear = [
            gap
            for gap in alone
            if gap.decided and (gap.plain or (measured and not gap.numbered and gap.name not in _TRAINING))
        ]
        new = [gap for gap in clear if requested.get(_key(gap.part), network.split) == network.split]
        if new:
            gap = _choose_gap(new, holders, samplers[index])
            requested[_key(gap.part)] = network.split
            results[index] = _draft(network, samplers[index], gap)
        elif clear:
            results[index] = Skipped("in_another_split", _REQUESTED_EARLIER)
        else:
            results[index] = Skipped("no_part", _NOT_STATED if choices else _NO_PART)
    return [results[index] for index in range(len(networks))]


def _key(text: str) -> bytes:
    return hashlib.sha256(text.strip().encode()).digest()


def _choose_gap(gaps: Sequence[Gap], holders: Counter[bytes], sampler: Sampler) -> Gap:
    """Choose an informative gap: not similar everywhere, in one record only, inferable from the rest of its file."""

    def rank(gap: Gap) -> tuple[bool, bool, bool]:
        return gap.name.rpartition(".")[2] in _USUAL, holders[_key(gap.part)] > 1, not gap.plain

    best = min(map(rank, gaps))
    return sampler.choice([gap for gap in gaps if rank(gap) == best], "gap")


def _draft(network: ChatNetwork, sampler: Sampler, gap: Gap) -> Draft:
    request = sampler.choice(_REQUESTS, "request").format(what=gap.what, mark=MARK)
    user = [request[0].upper() + request[1:], "", fence(gap.text), ""]
    if not gap.plain:
        user += [*_measures(network), ""]
    user.append(_RULE)
    system = sampler.choice(SYSTEMS if network.reading.has_net else BLOCK_SYSTEMS, "system")
    return Draft(system, "\n".join(user), sampler.choice(_ANSWERS, "answer") + fence(gap.part), gap.name)


def _measures(network: ChatNetwork) -> list[str]:
    """Return the measurements of the whole file, from which the sizes in a part can be inferred."""
    facts = network.measurements
    lines = [call_line(network), "", "Measured on the whole file:"]
    lines.append(f"- {plural(facts.parameters, 'parameter')}, {trainable(facts)}")
    if facts.layers:
        lines.append(f"- layers: {list_counts(facts.layers)}")
    return [*lines, *stage_lines(facts)]


def gaps(code: str) -> list[Gap]:
    """Find all gaps of a file: bodies of functions and methods, and top-level classes other than `Net`.

    Docstrings stay: a gap begins after them.
    """
    if MARK in code:
        return []
    lines: list[str] = LINE.findall(code)
    tree = parse_code(code, max_depth=None)
    reached = find_reached(tree)
    cuts = ((node, _cut(lines, node, what, name)) for node, what, name in _bodies(tree))
    reached -= find_with_idle_modules(tree)
    return [replace(gap, decided=gap.decided and node in reached) for node, gap in cuts if gap is not None]


def _bodies(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef | ast.ClassDef, str, str]]:
    """Yield the definitions whose bodies may be cut out, and the names for the request and the variant."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node, f"the body of the function `{node.name}`", f"body {node.name}"
        if isinstance(node, ast.ClassDef):
            if len(classes) > 1 and node.name != "Net":
                yield node, f"the body of the class `{node.name}`", f"class {node.name}"
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    what = f"the body of the method `{item.name}` of class `{node.name}`"
                    yield item, what, f"body {node.name}.{item.name}"


def _cut(lines: list[str], node: ast.FunctionDef | ast.ClassDef, what: str, name: str) -> Gap | None:
    """Return a body as a gap; None if it has few lines, does not parse alone or cannot be restored."""
    body = node.body[1:] if _has_docstring(node) else node.body
    if not body:
        return None
    if lines[body[0].lineno - 1].encode()[: body[0].col_offset].strip():
        return None  # on the line of the def, or of the docstring
    decorators = [item.lineno for item in getattr(body[0], "decorator_list", [])]
    first, last = min([body[0].lineno, *decorators]), node.end_lineno
    assert last is not None
    if last - first + 1 < _MIN_LINES:
        return None
    inside = lines[first - 1 : last]
    indent = inside[0][: len(inside[0]) - len(inside[0].lstrip())]
    ending = inside[-1][len(inside[-1].rstrip("\r\n")) :]
    part = "".join(line.removeprefix(indent) for line in inside).removesuffix(ending)
    text = "".join([*lines[: first - 1], indent, MARK, ending, *lines[last:]])
    try:
        tree = parse_code(part, max_depth=None)
    except SyntaxError:
        return None  # a less indented line, for example in a long string
    if put_back(text, part) != "".join(lines):
        return None
    rest = text.casefold()
    return Gap(
        what,
        name,
        text,
        part,
        _is_plain(tree, rest),
        _count_numbers(tree, text) > _MOST_NUMBERS,
        is_decided(tree, rest),
    )


def _has_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    return ast.get_docstring(node, clean=False) is not None


def _count_numbers(part: ast.Module, rest: str) -> int:
    """Return how many numbers of a part but 0, 1 and 2 are not in the rest of the file."""
    constants = (node.value for node in ast.walk(part) if isinstance(node, ast.Constant))
    numbers = {value for value in constants if isinstance(value, int | float | complex) and value not in (0, 1, 2)}
    return len({str(number) for number in numbers} - set(_NUMBER.findall(rest)))


def _is_plain(part: ast.Module, rest: str) -> bool:
    for node in ast.walk(part):
        if _has_docstring(node):
            return False
        if isinstance(node, ast.Constant):
            value = node.value
            if isinstance(value, int | float | complex) and value not in (0, 1, 2):
                return False
            if isinstance(value, str | bytes) and len(value.split()) > 1:
                return False
            if isinstance(value, str) and value.casefold() not in rest:
                return False
    return True
