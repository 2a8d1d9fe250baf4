"""Stand-ins for what cannot be copied into a block: which there are, and what each takes the place of.

- Compiled operators (`OPERATOR_FILES`): a function takes the place of the operator of its name, a class with `apply`
  that of the author's `autograd.Function` of its name; autograd differentiates it.
- Definitions that drag whole frameworks behind them (`DEFINITIONS`): known by their name together with their shape,
  not by where they come from. A class that is itself extracted is never replaced.

The files are modules of a source of their own, so that a block takes from them what it needs, as from any other.
"""

import ast
import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from extract.resolve.modules import Library, Module
from extract.sources import Source, SourceFile
from lemur_core.source.parse import parse_file
from manifests.provenance.swhid import blob_sha1

SOURCE_NAME = "lemur-curator"
OPERATOR_FILES = ("convolutions.py", "experts.py", "points.py", "regions.py")

_HERE = Path(__file__).parents[1] / "standins"


@dataclass(frozen=True, slots=True)
class StandIn:
    """A definition of ours that takes the place of another one."""

    file: str  # below `extract/standins`
    name: str  # there
    has: frozenset[str] = frozenset()  # methods of the class, or parameters, that the other one has too


def _table(file: str, text: str) -> dict[str, StandIn]:
    """Lines `THEIRS OURS: methods or parameters`, by the name of theirs."""
    found = {}
    for line in text.strip().splitlines():
        names, _, has = line.partition(":")
        theirs, ours = names.split()
        found[theirs] = StandIn(file, ours, frozenset(has.split()))
    return found


DEFINITIONS: Mapping[str, StandIn] = {
    **_table(
        "pretrained.py",
        """
        PreTrainedModel PreTrainedModel: from_pretrained post_init
        _CanRecordRegistry RecordedOutputs: get __setitem__
        GenerationMixin GenerationMixin: generate
        """,
    ),
    **_table(
        "settings.py",
        """
        PreTrainedConfig PreTrainedConfig: from_pretrained to_dict
        PretrainedConfig PreTrainedConfig: from_pretrained to_dict
        SubConfigSpec SubConfigSpec: create_subconfig
        """,
    ),
    **_table("attention.py", "AttentionInterface AttentionInterface: get_interface"),
    **_table("neighbours.py", "radius_graph radius_graph: x r batch loop max_num_neighbors flow"),
    **_table(
        "frameworks.py",
        """
        AutoConfig AutoClass: from_pretrained
        AutoTokenizer AutoClass: from_pretrained
        AutoProcessor AutoClass: from_pretrained
        load_backbone load_backbone: config
        requires requires: backends
        requires_backends requires_backends: obj backends
        _assert_has_ops assert_has_ops:
        _has_ops has_ops:
        load_state_dict load_checkpoint: module state_dict
        load_checkpoint load_checkpoint: model filename map_location
        _load_checkpoint load_checkpoint: filename map_location
        _load_checkpoint_with_prefix load_checkpoint: prefix filename
        ConfigDict ConfigDict: __missing__ __getattr__
        Config ConfigDict: fromfile
        build_from_cfg build_from_cfg: cfg registry default_args
        build_model_from_cfg build_from_cfg: cfg registry default_args
        get_logger get_logger: name
        print_log print_log: msg logger level
        MMLogger NamedLogger: get_current_instance
        """,
    ),
}
REGISTRY = StandIn("frameworks.py", "Registry")
NOT_INSTALLED = StandIn("frameworks.py", "NotInstalled")
NOT_DEFINED = StandIn("frameworks.py", "NotDefined")
MODULES = StandIn("frameworks.py", "Modules")
AUTO_CLASS = StandIn("frameworks.py", "AutoClass")
_AUTO_BASES = frozenset({"_BaseAutoModelClass", "_BaseAutoBackboneClass"})  # look other classes up by name


def find_definition(name: str, bases: Collection[str]) -> StandIn | None:
    """What takes the place of a definition of this name, if that has what it must have; `bases` by their last names."""
    if not _AUTO_BASES.isdisjoint(bases):
        made = StandIn("frameworks.py", name)
        return made if made in auto_models() else AUTO_CLASS
    return (_compiled()[1] if "Function" in bases else DEFINITIONS).get(name)


@functools.cache
def auto_models() -> Mapping[StandIn, tuple[str, ...]]:
    """What looks models up by their configurations, and how the names of such models end, the likeliest first."""
    file = _HERE / AUTO_CLASS.file
    classes = [item for item in ast.parse(file.read_text()).body if isinstance(item, ast.ClassDef)]
    values = [(kind.name, item) for kind in classes for item in kind.body if isinstance(item, ast.Assign)]
    return {
        StandIn(file.name, name): ast.literal_eval(item.value)
        for name, item in values
        if ast.unparse(item.targets[0]) == "endings"
    }


def find_operator(name: str) -> StandIn | None:
    """What takes the place of a compiled operator, whoever calls it."""
    return _compiled()[0].get(name)


@functools.cache
def _compiled() -> tuple[dict[str, StandIn], dict[str, StandIn]]:
    """The operators and the functions of autograd that the files stand in for, by name."""
    operators, functions = {}, {}
    for file in OPERATOR_FILES:
        for node in ast.parse((_HERE / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                (apply,) = (item for item in node.body if isinstance(item, ast.FunctionDef))
                parameters = frozenset(argument.arg for argument in apply.args.args)
                functions[node.name] = StandIn(file, node.name, parameters)
            elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                operators[node.name] = StandIn(file, node.name)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                table = functions if node.value.id in functions else operators
                for target in node.targets:
                    assert isinstance(target, ast.Name)
                    table[target.id] = StandIn(file, target.id, table[node.value.id].has)
    return operators, functions


@functools.cache
def standin_source() -> Source:
    """The source whose files are our stand-ins."""
    files = tuple(
        SourceFile(path.name, f"extract.standins.{path.stem}", False, blob_sha1(path.read_bytes()))
        for path in sorted(_HERE.glob("*.py"))
    )
    return Source(
        name=SOURCE_NAME,
        kind="folder",
        version="",
        origin="",
        license="MIT",
        root=_HERE,
        files=files,
        digest="",
        swhid="",
        requires=(),
    )


def standin_module(library: Library, file: str) -> Module:
    """The module of one stand-in file, by its path below this folder."""
    key = (SOURCE_NAME, file)
    if key not in library.by_path:
        source = standin_source()
        entry = next(item for item in source.files if item.path == file)
        library.adopt(source, entry, parse_file((source.root / file).read_bytes()))
    return library.by_path[key]
