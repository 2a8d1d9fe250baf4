"""The classes of one file: their bases there, methods and constants."""

import ast

from extract.hints.imports import imported_values
from extract.hints.sites import SiteList
from extract.hints.statements import Follower
from extract.hints.values import UNKNOWN, Expr, Function, Instance, Scope

Definition = ast.FunctionDef | ast.AsyncFunctionDef


class FileClasses(Follower):
    """Knows what the names of a file stand for."""

    def __init__(self, tree: ast.Module) -> None:
        self.sites = SiteList()
        self.scope = Scope()
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self._bodies: dict[str, Scope] = {}
        values, self.sites.bound = imported_values(tree)
        self.scope.names.update(values)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                self.scope.names[node.name] = Expr(node.name)
            elif isinstance(node, Definition):
                self.scope.names[node.name] = Function(node, self.scope)

    def bases(self, kind: str) -> list[str]:
        """The names of a class's bases."""
        node = self.classes.get(kind)
        values = [self.value(base, self.scope) for base in node.bases] if node is not None else []
        return [value.text for value in values if isinstance(value, Expr)]

    def fields(self, kind: str) -> list[str]:
        """The annotated names of a class's body and its bases', as a dataclass has them."""
        bodies = [node for owner in reversed(self.lineage(kind)) for node in self.classes[owner].body]
        return [n.target.id for n in bodies if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]

    def lineage(self, kind: str) -> list[str]:
        """A class of the file and its bases there, depth first."""
        result: list[str] = []
        waiting = [kind]
        while waiting:
            name = waiting.pop(0)
            if name in self.classes and name not in result:
                result.append(name)
                waiting = [*self.bases(name), *waiting]
        return result

    def method(self, kind: str, name: str) -> tuple[str, Definition] | None:
        """The class of the file that a method comes from, and its definition."""
        for owner in self.lineage(kind):
            for item in self.classes[owner].body:
                if isinstance(item, Definition) and item.name == name:
                    return owner, item
        return None

    def class_attribute(self, kind: str, name: str, instance: Instance | None) -> object:
        """What a class of the file has under a name."""
        for owner in self.lineage(kind):
            if owner not in self._bodies:
                self._bodies[owner] = Scope(self.scope)
                plain = [n for n in self.classes[owner].body if isinstance(n, ast.Assign | ast.AnnAssign)]
                self.suite(plain, self._bodies[owner])
            if name in self._bodies[owner].names:
                return self._bodies[owner].names[name]
        found = self.method(kind, name)
        if found is None:
            return UNKNOWN
        if any(isinstance(d, ast.Name) and d.id == "property" for d in found[1].decorator_list):
            return UNKNOWN
        return Function(found[1], self.scope, found[0], instance or Instance(kind))


def owner_of(scope: Scope | None) -> str:
    """The class whose method a scope belongs to."""
    while scope is not None:
        if scope.owner:
            return scope.owner
        scope = scope.parent
    return ""
