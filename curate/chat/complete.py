"""`complete`: a file with a gap, and the missing part; inserting it restores the file, without residue, byte for byte.

A gap is cut out by lines, not rewritten: LibCST prints no block without statements.
"""

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from curate.chat.design import BLOCK_SYSTEMS, SYSTEMS, call_line, list_counts, stage_lines, trainable
from curate.chat.network import ChatNetwork, last_name
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


# Which missing parts of a file the rest of it and measurements decide.
# A part that no run reaches may hold anything, and so may one whose choices change nothing that a request shows: where
# a dropout stands, a logarithm of the softmax before a loss that takes one itself, a norm of what is normalized
# already, the values that parameters begin with.

#: Methods that LEMUR and PyTorch call.
_CALLED = frozenset({"forward", "learn", "train_setup"})
_DROPPING = re.compile(r"drop(?!_?last)", re.IGNORECASE)
_NORM = re.compile(r"norm|(?:^|_)[bl]n(?:_|\d|$)", re.IGNORECASE)
_LOG_SOFTMAX = frozenset({"log_softmax", "LogSoftmax"})
_SOFTMAX = re.compile(r"softmax", re.IGNORECASE)
_WITH_SOFTMAX = ("crossentropyloss", "cross_entropy")

Definition = ast.FunctionDef | ast.ClassDef


def find_reached(tree: ast.Module) -> set[Definition]:
    """Return the functions, classes and methods that a network uses, by their names; all if there is no class."""
    tops = [node for node in tree.body if isinstance(node, Definition)]
    classes = [node for node in tops if isinstance(node, ast.ClassDef)]
    names = _names([node for node in tree.body if not isinstance(node, Definition)])
    wanted = {"Net"} & {node.name for node in classes} or {node.name for node in classes[-1:] or tops}
    names |= wanted | {"supported_hyperparameters"}
    reached: set[Definition] = set()
    waiting = True
    while waiting:
        methods = [item for node in reached if isinstance(node, ast.ClassDef) for item in node.body]
        defined = [*tops, *(item for item in methods if isinstance(item, ast.FunctionDef))]
        fresh = {node for node in defined if node not in reached and (node.name in names or _is_called(node, tops))}
        for node in fresh:
            names |= _names(_own_parts(node))
        reached |= fresh
        waiting = bool(fresh)
    return reached


def find_with_idle_modules(tree: ast.Module) -> set[Definition]:
    """Return the `forward` of each class that builds something as an attribute that nothing reads: who could know?"""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    read = {node.attr for node in attributes if isinstance(node.ctx, ast.Load)}
    idle: set[Definition] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            built = {
                target.attr
                for item in ast.walk(node)
                if isinstance(item, ast.Assign) and isinstance(item.value, ast.Call)
                for target in item.targets
                if isinstance(target, ast.Attribute) and _is_self(target)
            }
            if built - read:
                idle |= {item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "forward"}
    return idle


def _is_called(node: Definition, tops: list[Definition]) -> bool:
    return node not in tops and (node.name in _CALLED or node.name.startswith("__"))


def _own_parts(node: Definition) -> list[ast.AST]:
    """Return a definition's parts but, of a class, its methods: each is reached by itself."""
    if isinstance(node, ast.FunctionDef):
        return [node]
    return [*node.bases, *node.decorator_list, *(item for item in node.body if not isinstance(item, ast.FunctionDef))]


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    inner = [item for node in nodes for item in ast.walk(node)]
    names = {item.id for item in inner if isinstance(item, ast.Name)}
    return names | {item.attr for item in inner if isinstance(item, ast.Attribute)}


def is_decided(part: ast.Module, rest: str) -> bool:
    """Return False if a part holds what changes no measurement, and the rest of the file does not show.

    Args: rest: of the file, in lower case.
    """
    calls = [node for node in ast.walk(part) if isinstance(node, ast.Call)]
    names = Counter(last_name(call.func) for call in calls)
    if any(_DROPPING.search(name) for name in names) or any(map(_sets_beginning, calls)):
        return False
    of_self = Counter(call.func.attr for call in calls if isinstance(call.func, ast.Attribute) and _is_self(call.func))
    if any(number > 1 and _NORM.search(name) for name, number in of_self.items()):
        return False
    returned = {last_name(value.func) for value in _list_returned(part) if isinstance(value, ast.Call)}
    last = {name for name in returned if _SOFTMAX.search(name)} | (_LOG_SOFTMAX & set(names))
    return not (last and any(loss in rest for loss in _WITH_SOFTMAX))


def _list_returned(part: ast.Module) -> list[ast.expr | None]:
    """Return what is returned, and what was last assigned to a returned name."""
    assigned = {
        target.id: node.value
        for node in ast.walk(part)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    values = [node.value for node in ast.walk(part) if isinstance(node, ast.Return)]
    return [*values, *(assigned.get(value.id) for value in values if isinstance(value, ast.Name))]


def _is_self(function: ast.Attribute) -> bool:
    return isinstance(function.value, ast.Name) and function.value.id == "self"


def _sets_beginning(call: ast.Call) -> bool:
    """Return whether a call sets the values that a parameter begins with."""
    if last_name(call.func) == "Parameter":
        return bool(call.args) and isinstance(call.args[0], ast.Call)
    return isinstance(call.func, ast.Attribute) and last_name(call.func.value) == "init"
