"""Read from the source of a network what no run of it shows."""

import ast
import hashlib
import re
from functools import lru_cache

_GLUE = ("train_setup", "learn")  # methods with which LEMUR's trainer trains a network, besides its computation

_BATCH, _OTHER_BATCH = 3, 5
_LARGEST_BATCH = 16
_SIZES = frozenset({"shape", "size", "numel", "nelement"})
#: Arguments that usually hold the batch size.
_BATCH_NAMES = frozenset({"b", "B", "n", "N", "bs", "batch", "batch_size"})
_ARITHMETIC = ast.Div | ast.FloorDiv | ast.Mod | ast.Pow
#: Kinds of nodes that `_may_depend` can say yes to.
_DEPENDING = frozenset({ast.Match, ast.Try, ast.If, ast.IfExp, ast.While, ast.BinOp, ast.Compare, ast.BoolOp, ast.Call})
#: Nodes that hold statements.
_HOLDERS = (ast.stmt, ast.ExceptHandler, ast.match_case)
_NUMBER_CALLS = frozenset({"range", "min", "max", "int", "float", "bool", "round", "getattr", "divmod", "pow", "eval"})

#: Generators of its own, and hooks on nodes of autograd: nothing that is recorded shows what they do.
_OWN = re.compile(r"\b(default_rng|SystemRandom|RandomState|urandom|uuid4|random\.Random)\b")
_NODES = re.compile(r"\.grad_fn\b|\bregister_prehook\b")


def digest_glue(code: str) -> str:
    """Digest how a network trains itself, without comments and layout."""
    methods = [ast.dump(method) for name, method in _list_methods(code) if name in _GLUE]
    return hashlib.sha256("\n".join(methods).encode()).hexdigest()


def find_marks(code: str) -> set[str]:
    """Return why one run does not show all that a network computes, as far as its text tells.

    Args: code: the whole source of a network that runs.
    Returns: short descriptions; none for almost all networks.
    """
    marks = {"a generator of its own"} if _OWN.search(code) else set()
    marks |= {"a hook on a gradient"} if _NODES.search(code) else set()
    return marks | ({"training changes what forward reads"} if _changes_in_training(code) else set())


def list_batches(code: str) -> list[int]:
    """Return the batch sizes at which a network may do something else than at the one that is traced.

    Args: code: the whole source of a network that runs.
    Returns: none if nothing outside of constructors and training branches on sizes or computes numbers from them;
        otherwise 5, then, at most four, the small integers that a size is compared with, and their successors.
    """
    functions = [node for node in _list_statements(code) if isinstance(node, ast.FunctionDef) and _computes(node)]
    nodes = [node for function in functions for node in _walk(function)]
    sizes = _name_sizes(nodes)
    if not any(type(node) in _DEPENDING and _may_depend(node, sizes) for node in nodes):
        return []
    constants = {
        constant.value
        for test in nodes
        if isinstance(test, ast.Compare) and _has_size(test, sizes)
        for constant in _walk(test)
        if isinstance(constant, ast.Constant) and type(constant.value) is int
    }
    near = {size for constant in constants for size in (constant, constant + 1) if 0 < size <= _LARGEST_BATCH}
    return [_OTHER_BATCH, *sorted(near - {_BATCH, _OTHER_BATCH})[:4]]


def _computes(function: ast.FunctionDef) -> bool:
    """Return whether a function neither trains nor constructs a network, taking what LEMUR passes to a constructor."""
    constructs = any(argument.arg in ("in_shape", "out_shape", "prm") for argument in function.args.args)
    return function.name not in (*_GLUE, "__init__") and not constructs


def _name_sizes(nodes: list[ast.AST]) -> set[str]:
    """Return the variables and attributes that hold sizes of tensors, or numbers computed from them."""
    sizes = set(_BATCH_NAMES)
    assignments = [node for node in nodes if isinstance(node, ast.Assign)]
    for _ in range(2):  # one computed from another
        for node in assignments:
            if _has_size(node.value, sizes):
                for name in (name for target in node.targets for name in _walk(target)):
                    if isinstance(name, ast.Name | ast.Attribute) and isinstance(name.ctx, ast.Store):
                        sizes.add(name.id if isinstance(name, ast.Name) else f".{name.attr}")
    return sizes


def _has_size(expression: ast.AST, sizes: set[str]) -> bool:
    return any(
        (isinstance(node, ast.Attribute) and (node.attr in _SIZES or f".{node.attr}" in sizes))
        or (isinstance(node, ast.Name) and (node.id in sizes or node.id == "len"))
        for node in _walk(expression)
    )


def _may_depend(node: ast.AST, sizes: set[str]) -> bool:
    """Return whether a statement or expression may do something else for another batch."""
    if isinstance(node, ast.Match | ast.Try):
        return True
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        return _has_size(node.test, sizes)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        operands = (node.left, node.right)  # a product of sizes is one, and lists are repeated
        return len({isinstance(one, ast.List | ast.Tuple) or _has_size(one, sizes) for one in operands}) == 2
    compares = isinstance(node, ast.Compare | ast.BoolOp)
    computes = isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC)
    calls = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _NUMBER_CALLS
    return (compares or computes or calls) and _has_size(node, sizes)


@lru_cache(maxsize=4)
def _list_statements(code: str) -> list[ast.AST]:
    """Return the statements of a code in the order of `ast.walk`, without expressions, which are most of its nodes."""
    nodes: list[ast.AST] = [ast.parse(code)]
    for parent in nodes:  # which grows on the way
        for value in vars(parent).values():
            if type(value) is list:
                nodes += [item for item in value if isinstance(item, _HOLDERS)]
    return nodes


def _walk(root: ast.AST) -> list[ast.AST]:
    """Return what `ast.walk` yields but for contexts and operators, in a third of the time."""
    nodes = [root]
    for parent in nodes:  # which grows on the way
        for value in vars(parent).values():
            if type(value) is list:
                nodes += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and value._fields:
                nodes.append(value)
    return nodes


def _list_methods(code: str) -> list[tuple[str, ast.FunctionDef]]:
    return [
        (method.name, method)
        for statement in _list_statements(code)
        if isinstance(statement, ast.ClassDef) and statement.name == "Net"
        for method in statement.body
        if isinstance(method, ast.FunctionDef)
    ]


def _changes_in_training(code: str) -> bool:
    """Return whether training sets an attribute of the network that its computation reads.

    Training: `train_setup`, `learn`, and the methods that these call; the computation: `forward`, and those it calls.
    """
    methods = dict(_list_methods(code))
    training, computing = (_reach(methods, names) for names in (_GLUE, ("forward",)))
    written = {name for method in training - computing for name in _attributes(methods[method], ast.Store)}
    read = {name for method in computing for name in _attributes(methods[method], ast.Load)}
    return bool(written & read)


def _reach(methods: dict[str, ast.FunctionDef], names: tuple[str, ...]) -> set[str]:
    reached: set[str] = set()
    waiting = [name for name in names if name in methods]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += [other for other in _attributes(methods[name], ast.Load) if other in methods]
    return reached


def _attributes(method: ast.FunctionDef, context: type[ast.expr_context]) -> set[str]:
    """Return the attributes of the network itself that a method reads or sets."""
    owner = method.args.args[0].arg if method.args.args else "self"
    return {
        node.attr
        for node in _walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, context)
        and isinstance(node.value, ast.Name)
        and node.value.id == owner
    }
