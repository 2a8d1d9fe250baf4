"""The payloads of guests that run blocks. Standard library only: the guests import it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

#: A name in a call, in a line of code, or in a message.
NAME = re.compile(r"[A-Za-z_]\w*")

MOST_CHARACTERS = 16_000  # of one argument

#: How the arguments of a recorded constructor were found: the source passes them, a model does whose own ones were
#: guessed, or they were guessed themselves.
Way = Literal["recorded", "guessed above", "search"]

#: A class of dicts whose items are attributes, too, as those of a batch of graphs or of settings: the dicts in it are
#: of it. What is missing is an AttributeError, so that `hasattr` and copies work.
RECORD = (
    "type('Record', (dict,), {'__init__': lambda self, *items, **named: self.update({key: type(self)(item) "
    "if type(item) is dict else item for key, item in dict(*items, **named).items()}), "
    "'__getattr__': lambda self, key: self[key] if key in self else object.__getattribute__(self, key), "
    "'__setattr__': dict.__setitem__})"
)

#: The rate of dropout where models or defaults have none.
RAISED_RATE = "0.1"
ZERO_RATES = ("0", "0.0")


def is_rate(parameter: str) -> bool:
    """Return whether a constructor's parameter is a rate of dropout, by its name."""
    return "drop" in parameter


class CallTexts(TypedDict):
    """The arguments of one call, as Python expressions."""

    args: Sequence[str]
    kwargs: Mapping[str, str]


def join_arguments(args: Sequence[str], kwargs: Mapping[str, str]) -> str:
    """Return the arguments of a call as they stand between its parentheses."""
    return ", ".join([*args, *(f"{name}={text}" for name, text in kwargs.items())])


class CallsToRun(TypedDict):
    """The calls that construct a block and run it forward, as the column `arguments` states them."""

    init: CallTexts
    forward: CallTexts


class CompanionCode(TypedDict):
    """A class that arguments name, with its self-contained file; `qualname` is where its origin imports it from."""

    name: str
    code: str
    qualname: NotRequired[str]


@dataclass(frozen=True, slots=True)
class BlockRun:
    """A self-contained file to run, with arguments that work.

    Args:
        folders: for the end of sys.path, with what the file requires.
        origin: packages of its origin, which it must not import.
    """

    code: str
    name: str
    origin: Sequence[str]
    folders: Sequence[str]
    arguments: CallsToRun
    companions: Sequence[CompanionCode]


@dataclass(frozen=True, slots=True)
class BlockUses(BlockRun):
    """A self-contained file to run in every known way.

    Args:
        sizes: the tensor shapes of each further call.
        others: constructor and forward calls in the corpus, as `extract.arguments.hints.HintFinder` states them.
        backward: run backward with further arguments, too.
        sets: further arguments that work.
        graphs: record its graphs, too.
    """

    sizes: Sequence[Sequence[Sequence[int]]]
    others: Mapping[str, Sequence[Any]]
    backward: bool
    sets: Sequence[CallsToRun] = ()
    graphs: bool = True


@dataclass(frozen=True, slots=True)
class BlockInPlace(BlockUses):
    """A block to run below its own file, or as a module of a project.

    Args:
        lines: the printed call; the last one gives the outputs.
        module: the dotted name of the file in the project; "" for the block's own file.
        root: the folder that the module is imported from.
        file: the path of the module.
        bare: import the module without running the `__init__` files of its packages.
    """

    lines: Sequence[str] = ()
    module: str = ""
    root: str = ""
    file: str = ""
    bare: bool = False


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A file to load, and the lines to execute below it.

    Args:
        folders: for the end of sys.path, with what the file requires.
        origin: packages of its origin, which it must not import.
    """

    code: str
    lines: Sequence[str]
    folders: Sequence[str]
    origin: Sequence[str]


@dataclass(frozen=True, slots=True)
class SpecRebuild:
    """A block to rebuild from its spec.

    Args:
        header: the header of the generated file.
        stored: its graphs as in the spec (`lemur_core.graphs.sizes.Sized.from_json`).
        original: the block to compare with, as the fields of `BlockRun`, if available.
        tolerance: allow results to differ by this part of the largest value, where the original was written otherwise.
    """

    name: str
    header: str
    stored: Mapping[str, object]
    original: Mapping[str, Any] | None
    tolerance: float = 0.0


class Original(TypedDict):
    """A class to run from its own package. `name` is its name in the module, or an expression for it.

    `digest` is that of its source: another one asks again.
    """

    block: str
    module: str
    name: str
    arguments: CallsToRun
    companions: Sequence[Mapping[str, str]]
    digest: str


@dataclass(frozen=True, slots=True)
class Originals:
    """Classes of one package to run.

    Args:
        folders: for the front of sys.path, with the package and its dependencies.
        stir: fill free memory with other bytes, so that code that reads uninitialized memory gives another answer.
    """

    folders: Sequence[str]
    blocks: Sequence[Original]
    stir: bool


_SHAPE = re.compile(r"\w+ (\d+(?:x\d+)*)")
_RUN_BACKWARD = re.compile(r"\bbackward\b|hook\b")  # Python that runs backward, not forward


def make_uses(run: BlockRun, observed: Mapping[str, Any], hints: Mapping[str, Any]) -> BlockUses:
    """Return the request to run a block in every known way.

    Args:
        observed: an `Observed` record of the call in `run`.
        hints: calls found in the corpus, in the format of `extract.arguments.hints.HintFinder.hints_for`.
    """
    others = {name: hints.get(name, []) for name in ("init", "forward")}
    own = {companion["name"] for companion in run.companions}
    words = set(NAME.findall(str(others)))
    more = [item for item in hints.get("companions", ()) if item["name"] in words - own]
    return BlockUses(
        run.code,
        run.name,
        run.origin,
        run.folders,
        run.arguments,
        [*run.companions, *more],
        list_sizes(observed),
        others,
        _RUN_BACKWARD.search(run.code) is not None,
    )


def list_sizes(observed: Mapping[str, Any]) -> list[list[list[int]]]:
    """Return the input shapes of each further call that was observed to work."""
    cases = []
    for case in observed.get("cases", ())[1:]:
        shapes = [_SHAPE.fullmatch(text) for text in case["inputs"].values()]
        cases.append([[int(size) for size in shape[1].split("x")] for shape in shapes if shape is not None])
    return [shapes for shapes in cases if shapes]


@dataclass(frozen=True, slots=True)
class SourceRecording:
    """Classes of a source whose calls are recorded while its own models, examples and scripts run.

    Args:
        folders: for the front of sys.path, with the packages and their dependencies.
        classes: `MODULE:NAME` of each class.
        modules: further modules to import, which mention these classes.
        examples: Python code of the source's documentation, one text an example.
        tests: files of tests, relative to the first folder that has them.
        packages: the top-level packages of the source.
        digest: of the source: another one asks again.
        pytest: the folder that has it, named by the digest of what it holds, its version too.
        replaced: modules that are nowhere, such as compiled ones.
        last: whether to record what can be imported, whatever is absent.
    """

    folders: Sequence[str]
    classes: Sequence[str]
    modules: Sequence[str]
    examples: Sequence[str]
    tests: Sequence[str]
    packages: Sequence[str]
    digest: str
    pytest: str
    replaced: Sequence[str] = ()
    last: bool = False
