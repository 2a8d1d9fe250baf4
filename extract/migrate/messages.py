"""The requests to the guests of a migration, and their answers. Standard library only: the guests import it.

A case describes the inputs of a network, as for `lemur_core.sandbox.net.run_network`: `in_shape`, `out_shape`,
`output`, `dtype`, `values` and `words`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from extract.arguments.messages import CallsToRun

Case = Mapping[str, Any]
Shape = tuple[int, ...]
#: The step at which a migration stopped. `closed` and the following are steps of the verification, in order.
MigrationStep = Literal[
    "host", "site", "written", "closed", "builds", "runs", "shape", "gradients", "learns", "leads", "proved"
]


@dataclass(frozen=True, slots=True)
class NetworkToObserve:
    """A network with two lists of cases: from each, the first that it runs with is used."""

    code: str
    prm: Mapping[str, Any]
    cases: Sequence[Sequence[Case]]


@dataclass(frozen=True, slots=True)
class ObservedSubmodule:
    """An observed submodule of a network."""

    path: str
    steps: str  # the Python expression to reach it; empty if there is none
    kind: str
    within: tuple[str, int]  # type of its container, and the number of items in it
    parameters: int
    children: int
    shared: bool
    calls: int
    single: bool
    inputs: tuple[tuple[Shape, ...], ...]  # case -> shapes
    outputs: tuple[tuple[Shape, ...], ...]


@dataclass(frozen=True, slots=True)
class ObservedNetwork:
    """The observed runs of a network."""

    cases: tuple[Case, ...]  # inputs that it ran with
    outputs: tuple[Shape, ...]  # output shapes, by case
    # Its submodules that were called, in the order of the ends of their first calls.
    places: tuple[ObservedSubmodule, ...]
    stars: Mapping[str, Sequence[str]]  # module -> names bound by its star import


@dataclass(frozen=True, slots=True)
class BrokenNetwork:
    """Why a network does not run or learn as it is; `category` is the step that failed."""

    category: str
    error: str


class CallToTry(TypedDict):
    """A constructor call, also as its arguments, and the width of the inputs to run the block with."""

    call: str
    args: list[str]
    kwargs: dict[str, str]
    width: int


class PointToTry(TypedDict):
    """The input and output shapes at an insertion point, by case, and the channel dimension of the block."""

    before: list[list[int]]
    after: list[list[int]]
    axis: int
    attempts: list[CallToTry]


@dataclass(frozen=True, slots=True)
class BlockToFit:
    """A closed file, its class, and where to try it."""

    code: str
    name: str
    sites: Sequence[PointToTry]


@dataclass(frozen=True, slots=True)
class Fit:
    """The first call that needs the fewest adapters, and the input and output width of the block."""

    args: tuple[str, ...]
    kwargs: Mapping[str, str]
    width: int
    gives: int


@dataclass(frozen=True, slots=True)
class NoFit:
    """Why a block fits nowhere at an insertion point: the error of the attempt that came furthest."""

    reason: str


@dataclass(frozen=True, slots=True)
class NetworkToProve:
    """A network with an inserted block."""

    code: str
    prm: Mapping[str, Any]
    cases: Sequence[Case]
    outputs: Sequence[Sequence[int]]  # the required output shape of each case
    name: str  # the block's class in the file
    path: str  # the submodule that contains it


@dataclass(slots=True)
class NetworkProof:
    """The verified steps of a network with an inserted block; the guest fills it step by step."""

    proved: list[str]  # the steps that succeeded
    failed: MigrationStep | None = None  # the step that did not, and `why`
    why: str = ""
    parameters: int = 0  # number of trainable tensors of the block; `moved` of them changed in training
    moved: int = 0
    graph: str | None = None  # why there is no graph, if there is none


@dataclass(frozen=True, slots=True)
class ModuleToSign:
    """A block as a module of a project, and the environment of the project."""

    roots: Sequence[str]  # folders to import the project's own modules from, before all others
    packages: Sequence[str]  # the top-level names of these modules
    folders: Sequence[str]  # for the end of sys.path, with the requirements of the project and the block
    module: str  # dotted name of the block's module
    name: str  # its class in the module
    arguments: CallsToRun
    sizes: Sequence[Sequence[Sequence[int]]]  # the tensor shapes of each further call
    test: str  # path of its smoke test


@dataclass(frozen=True, slots=True)
class SeenBlock:
    """The observed behavior of a block, for its smoke test."""

    single: bool  # whether the output is one tensor
    shapes: tuple[tuple[int, ...], ...]  # of all tensors of the output
    trains: bool  # whether it runs in train mode; otherwise the rest was observed in eval mode
    learns: bool  # whether gradients reach a parameter
