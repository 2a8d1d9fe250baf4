"""The shapes of a class's inputs, also those that the classes say to which it passes them on."""

from extract.discover import follow
from extract.hints.records import Records
from extract.hints.shapes import Shape
from extract.modules import Definition, Module

_DEEPEST = 4
_MOST = 16


class Inputs:
    """Follows arguments from class to class; each class once."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._known: dict[tuple[int, str], tuple[Shape, ...]] = {}

    def of(self, module: Module, name: str, depth: int = 0) -> tuple[Shape, ...]:
        """What is said of the arguments of a class's forward: its own code, where they go, text, guesses."""
        key = (id(module), name)
        if key in self._known or depth > _DEEPEST:
            return self._known.get(key, ())
        self._known[key] = ()  # a class may hold others of itself
        found = self._records.definer(module, name, "forward")
        lineage = self._records.lineage(module, name)
        told = [item for item in lineage if item.record.shapes or item.record.flows]
        if found is None and not told:
            return ()
        definer = found[0] if found is not None else told[0]
        own = definer.record.shapes
        passed: list[Shape] = []
        for flow in definer.record.flows:
            target = follow(self._records.library, definer.module, tuple(flow.kind.split(".")))
            if not isinstance(target, Definition):
                continue
            there = self._records.definer(target.module, target.name, "forward")
            names = [p.name for p in there[1] if p.kind == "plain"] if there is not None else ["input"]
            if flow.position < len(names):
                shapes = self.of(target.module, target.name, depth + 1)
                passed += [s._replace(argument=flow.argument) for s in shapes if s.argument == names[flow.position]]
        sure = [shape for shape in own if shape.way == "code"]
        result = dict.fromkeys([*sure, *passed, *(shape for shape in own if shape.way != "code")])
        self._known[key] = tuple(result)[:_MOST]
        return self._known[key]
