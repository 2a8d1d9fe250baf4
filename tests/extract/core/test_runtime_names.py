"""What the text of torch and torchvision says of their names is what the imported modules show."""

import subprocess
import sys

import pytest
import torch
import torchvision  # noqa: F401 (its modules are compared)

from extract.resolve import runtime_names
from extract.resolve.runtime_names import RuntimeNames


@pytest.mark.parametrize("package", ["torch.nn", "torch.utils", "torch.autograd", "torchvision"])
def test_no_answer_of_a_text_differs_from_the_import(package: str) -> None:
    loaded = [name for name in sys.modules if f"{name}.".startswith(f"{package}.") and runtime_names._is_public(name)]
    stated = 0
    for dotted in loaded:
        module, text = sys.modules[dotted], runtime_names._read(dotted)
        for name in {*vars(module), *(text.binders if text is not None else ())}:
            if runtime_names._find_definition(dotted, name) is not None:
                assert hasattr(module, name), f"{dotted}.{name}"
                stated += 1
            is_class = runtime_names._is_stated_module_class(dotted, name)
            if is_class is not None:
                value = getattr(module, name)
                assert is_class == (isinstance(value, type) and issubclass(value, torch.nn.Module)), f"{dotted}.{name}"
    assert stated > 100


def test_ordinary_questions_import_nothing() -> None:
    code = """
import sys
from extract.resolve.runtime_names import RuntimeNames
names = RuntimeNames()
assert names.is_module_class("torch.nn", "Conv2d") and not names.is_module_class("torch.nn.functional", "relu")
assert names.has("torchvision.models.feature_extraction", "create_feature_extractor") and names.has("torch", "nn")
assert not {"torch", "torchvision"} & sys.modules.keys()
assert not names.has("torch.nn", "Conv9d")
assert "torch" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_module_that_an_object_replaces_is_imported() -> None:
    assert runtime_names._find_definition("torch.backends", "GenericModule") is None  # an object takes its place
    assert RuntimeNames().has("torch.backends", "contextmanager") == hasattr(torch.backends, "contextmanager")
