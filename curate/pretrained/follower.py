"""The order in which one module is read: its statements first, then what it never calls itself, with its defaults."""

import ast

from curate.pretrained.expressions import MAX_DEPTH, MAX_STEPS
from curate.pretrained.statements import Statements
from curate.pretrained.values import Call, Function, Scope


class Follower(Statements):
    """Reads one module, once."""

    def __init__(self) -> None:
        super().__init__()
        self.named: set[str] = set()  # names that the file mentions anywhere

    def follow(self, tree: ast.Module) -> set[int]:
        """Lines that load trained weights."""
        self.block(tree.body, Scope(None))
        self.named = referenced_names(tree)
        while self.steps < MAX_STEPS:
            if not any([self.build_classes(), self.enter_methods(), self.enter_functions()]):
                break
        return self.lines

    def is_open(self, name: str) -> bool:
        """Whether outside code may enter `name`: the file never mentions it, or does so in code that is reached."""
        return name not in self.named or name in self.mentioned or name == "forward"

    def build_classes(self) -> bool:
        """Build classes that the file does not; whether there were any."""
        progress = False
        for cls in list(self.classes):
            if cls not in self.used and (cls.name == "Net" or self.is_open(cls.name)):
                progress = True
                self.build(cls, Call([], {}, cls.line))
        return progress

    def enter_methods(self) -> bool:
        """Enter methods that the file does not call, of every object; whether there were any."""
        progress = False
        for instance in list(self.instances):
            for name in instance.cls.members():
                for atom in instance.cls.lookup(name) or ():
                    if isinstance(atom, Function) and atom not in instance.entered and self.is_open(name):
                        progress = True
                        instance.entered.add(atom)
                        self.enter(atom, instance, [], {})
        return progress

    def enter_functions(self) -> bool:
        """Enter functions that the file does not call; whether there were any."""
        progress = False
        for function in list(self.functions):
            if function.owner is None and function not in self.used and self.is_open(function.name):
                progress = True
                self.enter(function, None, [], {})
        return progress


def referenced_names(tree: ast.Module) -> set[str]:
    """Names and attributes that the code mentions outside annotations and outside the definition of that name."""
    found: set[str] = set()
    stack: list[tuple[ast.AST, tuple[str, ...]]] = [(tree, ())]
    while stack:
        node, inside = stack.pop()
        if isinstance(node, ast.Name):
            if node.id not in inside:
                found.add(node.id)
            continue
        if isinstance(node, ast.Attribute) and node.attr not in inside:
            found.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = (node.name, *inside[: MAX_DEPTH - 1])
        for name, child in ast.iter_fields(node):
            if name in ("annotation", "returns"):
                continue
            if isinstance(child, ast.AST):
                stack.append((child, inside))
            elif isinstance(child, list):
                stack.extend((item, inside) for item in child if isinstance(item, ast.AST))
    return found
