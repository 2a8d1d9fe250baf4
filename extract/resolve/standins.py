"""Replacements for code that cannot be copied into a block: which ones exist, and what each of them replaces.

- Compiled operators (`OPERATOR_FILE`): a function replaces the operator of the same name; a class with `apply`
  replaces the author's `autograd.Function` of the same name, and is differentiated by autograd.
- Definitions that depend on whole frameworks (`DEFINITIONS`): recognized by name and shape,
  not by origin. A class that is itself extracted is never replaced.

The files are modules of a separate source, so blocks copy from them only the parts they need, as from any source.
"""

import ast
import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from extract.resolve.modules import CorpusIndex, Module
from extract.sources import PackageSource
from extract.sources.contents import make_source
from extract.sources.metadata import PackageFacts
from lemur_core.source.parse import parse_file

SOURCE_NAME = "lemur-curator"
OPERATOR_FILE = "operators.py"

_HERE = Path(__file__).parents[1] / "standins"


@dataclass(frozen=True, slots=True)
class Replacement:
    """A definition of ours that replaces another one."""

    file: str  # in the folder of replacements
    name: str  # there
    has: frozenset[str] = frozenset()  # methods of the class, or parameters, that the original must have


def _read(line: str) -> tuple[str, Replacement]:
    """Read `FILE THEIRS OURS: methods or parameters`."""
    names, _, has = line.partition(":")
    file, theirs, ours = names.split()
    return theirs, Replacement(file, ours, frozenset(has.split()))


#: By the name of the definition that is replaced.
DEFINITIONS: Mapping[str, Replacement] = dict(
    map(
        _read,
        """
        pretrained.py PreTrainedModel PreTrainedModel: from_pretrained post_init
        pretrained.py _CanRecordRegistry RecordedOutputs: get __setitem__
        pretrained.py GenerationMixin GenerationMixin: generate
        pretrained.py PreTrainedConfig PreTrainedConfig: from_pretrained to_dict
        pretrained.py PretrainedConfig PreTrainedConfig: from_pretrained to_dict
        pretrained.py SubConfigSpec SubConfigSpec: create_subconfig
        pretrained.py AttentionInterface AttentionInterface: get_interface
        frameworks.py AutoConfig AutoClass: from_pretrained
        frameworks.py AutoTokenizer AutoClass: from_pretrained
        frameworks.py AutoProcessor AutoClass: from_pretrained
        frameworks.py _assert_has_ops assert_has_ops:
        frameworks.py _has_ops has_ops:
        frameworks.py load_state_dict load_checkpoint: module state_dict
        frameworks.py load_checkpoint load_checkpoint: model filename map_location
        frameworks.py _load_checkpoint load_checkpoint: filename map_location
        frameworks.py _load_checkpoint_with_prefix load_checkpoint: prefix filename
        frameworks.py build_from_cfg build_from_cfg: cfg registry default_args
        frameworks.py build_model_from_cfg build_from_cfg: cfg registry default_args
        frameworks.py get_logger get_logger: name
        frameworks.py print_log print_log: msg logger level
        frameworks.py MMLogger NamedLogger: get_current_instance
        frameworks.py radius_graph radius_graph: x r batch loop max_num_neighbors flow
        """.strip().splitlines(),
    )
)
REGISTRY = Replacement("frameworks.py", "Registry")
NOT_INSTALLED = Replacement("frameworks.py", "NotInstalled")
NOT_DEFINED = Replacement("frameworks.py", "NotDefined")
AUTO_CLASS = Replacement("frameworks.py", "AutoClass")
_AUTO_BASES = frozenset({"_BaseAutoModelClass", "_BaseAutoBackboneClass"})  # look up other classes by name


def find_definition(name: str, bases: Collection[str]) -> Replacement | None:
    """Return the replacement of a definition of this name, if any; `bases` are the last names of its base classes."""
    if not _AUTO_BASES.isdisjoint(bases):
        return AUTO_CLASS
    return (_list_compiled()[1] if "Function" in bases else DEFINITIONS).get(name)


def find_operator(name: str) -> Replacement | None:
    """Return the replacement of a compiled operator, if there is one."""
    return _list_compiled()[0].get(name)


@functools.cache
def _list_compiled() -> tuple[dict[str, Replacement], dict[str, Replacement]]:
    """Return the replacements of operators and of autograd functions, by name."""
    operators, functions = {}, {}
    for node in ast.parse((_HERE / OPERATOR_FILE).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            # A replacement of an `autograd.Function` has `apply` alone: autograd differentiates it.
            (apply,) = (item for item in node.body if isinstance(item, ast.FunctionDef))
            parameters = frozenset(argument.arg for argument in apply.args.args)
            functions[node.name] = Replacement(OPERATOR_FILE, node.name, parameters)
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            operators[node.name] = Replacement(OPERATOR_FILE, node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            table = functions if node.value.id in functions else operators
            for target in node.targets:
                assert isinstance(target, ast.Name)
                table[target.id] = Replacement(OPERATOR_FILE, target.id, table[node.value.id].has)
    return operators, functions


@functools.cache
def replacement_source() -> PackageSource:
    """Return the source whose files are our replacements."""
    python = {path.name: path.read_bytes() for path in _HERE.glob("*.py")}
    about = {"name": SOURCE_NAME, "kind": "folder", "version": "", "origin": "", "root": _HERE}
    return make_source(python, PackageFacts(SOURCE_NAME, "", "MIT", ()), within="extract/standins", **about)


def replacement_module(library: CorpusIndex, file: str) -> Module:
    """Return the module of one file of replacements, by its path below this folder."""
    key = (SOURCE_NAME, file)
    if key not in library.by_path:
        source = replacement_source()
        entry = next(item for item in source.files if item.path == file)
        library.adopt(source, entry, parse_file((source.root / file).read_bytes()))
    return library.by_path[key]
