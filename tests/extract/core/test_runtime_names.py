"""One process lists the names of torch and torchvision; the list is what their imported modules show."""

import subprocess
import sys

import pytest
import torch
import torchvision  # noqa: F401 (its modules are compared)

from extract.resolve.runtime_names import RuntimeNames


@pytest.fixture(scope="module")
def names() -> RuntimeNames:
    return RuntimeNames()


@pytest.mark.parametrize("package", ["torch.nn", "torch.utils", "torch.autograd", "torchvision"])
def test_the_list_is_what_modules_show(names: RuntimeNames, package: str) -> None:
    assert names.has(package, "")
    loaded = [name for name in names._listed if f"{name}.".startswith(f"{package}.") and name in sys.modules]
    assert package in loaded
    for dotted in loaded:
        for name in dir(sys.modules[dotted]):
            value = getattr(sys.modules[dotted], name, None)
            is_class = isinstance(value, type) and issubclass(value, torch.nn.Module)
            assert names.has(dotted, name) or value is None, f"{dotted}.{name}"
            assert names.is_module_class(dotted, name) == is_class, f"{dotted}.{name}"
    assert len(names._answers) < 20, "the others are in the list"


def test_ordinary_questions_import_nothing_and_the_list_is_made_once(
    names: RuntimeNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    names.has("torch", "nn")
    saved = names.dump()
    code = """
import subprocess, sys
import extract.interface, extract.resolve.standins
from extract.resolve.runtime_names import RuntimeNames
names = RuntimeNames()
names.load(sys.stdin.buffer.read())
subprocess.run = None
assert names.is_module_class("torch.nn", "Conv2d") and not names.is_module_class("torch.nn.functional", "relu")
assert names.has("torchvision.models.feature_extraction", "create_feature_extractor") and names.has("torch", "nn")
assert names.has("torch.nn", "") and names.has("torchvision.transforms", "v2") and not names.has("jsonn", "")
assert not {"torch", "torchvision"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], input=saved, check=True)


def test_modules_that_objects_replace_or_that_are_of_no_runtime(names: RuntimeNames) -> None:
    assert names.has("torch.backends", "contextmanager") == hasattr(torch.backends, "contextmanager")
    assert names.is_submodule("xml", "dom")
    assert not names.is_submodule("packaging", "version"), "installed here, perhaps not elsewhere"
