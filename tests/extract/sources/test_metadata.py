"""What is read from the texts of a project: name, version, license, requirements, and where its packages are."""

from dataclasses import replace
from pathlib import Path

from extract.sources.contents import make_source
from extract.sources.metadata import PackageFacts, is_text, read_facts
from tests.builders.suites import table

MIT = b"Permission is hereby granted, free of charge, to any person obtaining a copy\nto deal in the Software without restriction\nThe above copyright notice and this permission notice shall be"
METADATA = b"""Metadata-Version: 2.1
Name: Pack_age
Version: 1.2
License: BSD
Classifier: License :: OSI Approved :: MIT License
Requires-Dist: torch (>=1.7)
Requires-Dist: pytest ; extra == 'test'

Requires-Dist: not a header, but the description
"""


@table(__file__, "metadata.md", "Facts", globals())
def test_facts(texts: dict[str, bytes], expected: PackageFacts) -> None:
    assert replace(read_facts(texts), roots=()) == expected


def test_texts_to_read() -> None:
    wanted = (
        "LICENSE LICENCE.txt LICENSE-APACHE COPYING.LESSER UNLICENSE x-1.dist-info/METADATA PKG-INFO pyproject.toml"
    )
    wanted += " x-1.dist-info/licenses/LICENSE x.egg-info/requires.txt requirements.txt requirements/runtime.txt"
    wanted += " LICENSES/MIT.txt setup.py setup.cfg packages/a/pyproject.toml sub/setup.py"
    others = "license.py licenses sub/LICENSE x-1.dist-info/RECORD sub/x-1.dist-info/METADATA a/b/c/d/setup.py"
    others += " tests/pyproject.toml docs/setup.py .github/setup.py sub/requirements.txt"
    assert [path for path in f"{wanted} {others} requirements/tests.txt".split() if is_text(path)] == wanted.split()


POETRY = b"""[tool.poetry]
name = "acme"
[tool.poetry.dependencies]
python = "^3.9"
torch = ">=1.8"
einops = "^0.6.1"
numpy = "^1"
timm = "~0.4.12"
scipy = "*"
tqdm = "4.60"
odd = "^1 || ^2"
lmdb = {version = "^1.2", optional = true}
kornia = [{version = "^0.6", markers = "python_version < '3'"}]
"""
SETUP = b"""
from setuptools import setup, find_packages
import sys
BASE = ["torch>=1.8", "numpy"]
MORE = ["tqdm"]
MORE += ["einops"]
ROOTS = {"": "lib", "old.acme": "source"}
if __name__ == "__main__":
    sys.exit(1 / 0)
    setup(name="acme", install_requires=BASE, extras_require={"dev": ["pytest"], "all": MORE}, package_dir=ROOTS,
          packages=find_packages("lib"))
"""


@table(__file__, "metadata.md", "Requirements", globals())
def test_requirements(texts: dict[str, bytes], expected: list[str]) -> None:
    assert list(read_facts(texts).requires) == expected


def test_a_setup_script_is_only_read() -> None:
    """Its literals are; what running it would show is left out."""
    facts = read_facts({"setup.py": SETUP})
    assert (facts.requires, facts.roots) == (("torch>=1.8", "numpy"), (("lib", ""), ("source", "old.acme")))
    for text in ("", "setup()", "setup(**x)", "x.append(1)", "setup(*a, name=b)", "\0", "(" * 5000, "-" * 90000 + "1"):
        assert read_facts({"setup.py": text.encode()}) == read_facts({"setup.py": b""})


@table(__file__, "metadata.md", "Roots", globals())
def test_roots(name: str, text: str, expected: list[tuple[str, str]]) -> None:
    assert list(read_facts({name: text.encode()}).roots) == expected
    below = [(f"packages/a/{folder}", package) for folder, package in expected]
    assert list(read_facts({f"packages/a/{name}": text.encode()}).roots) == below


def test_a_wheel_is_laid_out_already() -> None:
    facts = read_facts({"x-1.dist-info/METADATA": METADATA, "pkg/new/setup.py": b"setup(package_dir={'': 'lib'})"})
    python = {"acme/nets/__init__.py": b"", "acme/nets/basis.py": b""}  # `acme` is a namespace, which nothing states
    source = make_source(python, facts, root=Path(), name="x@1", kind="package", version="1", origin="")
    assert [file.module for file in source.files] == ["acme.nets", "acme.nets.basis"]
    assert read_facts({"setup.py": b"setup(package_dir={'acme': '.'})"}).roots == (("", "acme"),)
