"""Classes that only look like registries, and configurations that their model type names."""

from extract.modules import Definition
from extract.registry import Registries


def test_a_table_that_registers_nothing_stays_what_it_is(behaves) -> None:  # type: ignore[no-untyped-def]
    code = behaves(
        """
        --- p/table.py
        class _SeenRegistry(dict):
            def get(self, key):
                return super().get(str(key)) or {}
        SEEN = _SeenRegistry()
        SEEN["1"] = {"one": 1}
        --- p/a.py
        from torch import nn
        from .table import SEEN
        class A(nn.Module):
            def forward(self, x): return dict(SEEN.get(x))
        """,
        "A()(1), A()(2)",
        ({"one": 1}, {}),
    )
    assert "class _SeenRegistry(dict):" in code


MODEL_TYPES = """
--- a/configs.py
class TextConfig:
    model_type = "text"
    size = 1
class VisionConfig:
    model_type: str = 'vision'
class Plain:
    def f(self):
        model_type = "inner"
--- b/configs.py
class TextConfig:
    model_type = "text"
class OtherConfig(TextConfig):
    model_type = "other"
"""


def test_the_configuration_of_a_model_type(corpus) -> None:  # type: ignore[no-untyped-def]
    made = corpus(MODEL_TYPES, apart=True)
    registries = Registries(made.library, made.index)
    first, second = made.sources

    def named(model_type: str, source: object) -> str | None:
        found = registries.configuration(model_type, source)
        assert found is None or isinstance(found, Definition)
        return None if found is None else f"{found.module.source.name}.{found.name}"

    assert named("text", first) == f"{first.name}.TextConfig"
    assert named("text", second) == f"{second.name}.TextConfig"
    assert named("vision", second) == f"{first.name}.VisionConfig"
    assert named("other", first) == f"{second.name}.OtherConfig"
    assert named("inner", first) is None
