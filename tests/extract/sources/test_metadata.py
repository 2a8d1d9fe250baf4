"""What is read from the texts of a project: name, version, license, requirements, and where its packages are."""

import ast
from dataclasses import replace

import pytest

from extract.sources.layout import read_setup_script
from extract.sources.metadata import PackageFacts, is_text, read_facts

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


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            {"x-1.2.dist-info/METADATA": METADATA},
            PackageFacts("Pack_age", "1.2", "MIT", ("torch (>=1.7)", "pytest ; extra == 'test'")),
        ),
        (
            {"PKG-INFO": METADATA.partition(b"License")[0], "LICENSE": MIT},
            PackageFacts("Pack_age", "1.2", "MIT", ()),
        ),
        (
            {"x.egg-info/requires.txt": b"numpy>=1\nyaml\n\n[all]\ntorch\n", "LICENSE.md": b"All rights reserved."},
            PackageFacts("", "", "NOASSERTION", ("numpy>=1", "yaml")),
        ),
        (
            {"pyproject.toml": b'[project]\ndependencies = ["torch>=2", "?"]', "requirements.txt": b"numpy"},
            PackageFacts("", "", "NOASSERTION", ("torch>=2",)),
        ),
        (
            {"requirements.txt": b"# pip install\n-r more.txt\ntorch>=1.5,!=1.6 # newer\ngit+https://x/y\n\nnumpy"},
            PackageFacts("", "", "NOASSERTION", ("torch!=1.6,>=1.5", "numpy")),
        ),
        (
            {"requirements.txt": b"-r requirements/runtime.txt", "requirements/runtime.txt": b"numpy"},
            PackageFacts("", "", "NOASSERTION", ("numpy",)),
        ),
        ({"pyproject.toml": b'[project]\nlicense = "MIT"'}, PackageFacts("", "", "MIT", ())),
        (
            {
                "pyproject.toml": b'[project]\nlicense = "mit or apache-2.0"\nlicense-files = ["LICEN[CS]E*"]',
                "LICENSE": MIT,
            },
            PackageFacts("", "", "MIT OR Apache-2.0", ()),
        ),
        ({"pyproject.toml": b'[project]\nlicense = {text = "BSD 3-Clause"}'}, PackageFacts("", "", "BSD-3-Clause", ())),
        (
            {"pyproject.toml": b'[project]\nclassifiers = ["License :: OSI Approved :: MIT License"]'},
            PackageFacts("", "", "MIT", ()),
        ),
        (
            {
                "pyproject.toml": b'[project]\nlicense-files = ["LICENSES/*"]',
                "LICENSES/MIT.txt": MIT,
                "COPYING": b"GNU General Public License version 3, basic permissions",
            },
            PackageFacts("", "", "MIT", ()),
        ),
        ({"pyproject.toml": b'[project]\nlicense = "no such"', "LICENSE": MIT}, PackageFacts("", "", "MIT", ())),
        ({"pyproject.toml": b"not = [toml", "LICENSE": b"\xff\xfe"}, PackageFacts("", "", "NOASSERTION", ())),
        ({"pyproject.toml": b"project = 3"}, PackageFacts("", "", "NOASSERTION", ())),
        ({}, PackageFacts("", "", "NOASSERTION", ())),
    ],
)
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
import os
BASE = ["torch>=1.8", "numpy"]
BASE += ["einops"]
BASE.append("tqdm")
if os.name == "nt":
    BASE.extend(["colorama"])
EXTRAS = {"dev": "pytest"}
EXTRAS["all"] = BASE + ["timm==%s" % "0.4.12"]
about = dict(install_requires=BASE + open("more.txt").readlines(), package_dir={"": "lib", "old.acme": "source"})
if __name__ == "__main__":
    setup(name="acme", extras_require=EXTRAS, packages=find_packages("lib"), **about)
"""
#: Settings, and the requirements that they state.
REQUIRES: list[tuple[dict[str, bytes], list[str]]] = [
    (
        {"pyproject.toml": POETRY, "requirements.txt": b"other"},
        [
            "torch>=1.8", "einops<0.7,>=0.6.1", "numpy<2,>=1", "timm<0.5,>=0.4.12", "scipy", "tqdm==4.60", "odd",
            'lmdb<2,>=1.2; extra == "optional"', 'kornia<0.7,>=0.6; python_version < "3"',
        ],
    ),
    (
        {"setup.py": SETUP, "requirements.txt": b"other"},
        [
            "torch>=1.8", "numpy", "einops", "tqdm", "colorama", 'pytest; extra == "dev"', 'torch>=1.8; extra == "all"',
            'numpy; extra == "all"', 'einops; extra == "all"', 'tqdm; extra == "all"', 'colorama; extra == "all"',
            'timm==0.4.12; extra == "all"',
        ],
    ),
    ({"setup.py": b"setup(install_requires=read('x'))", "requirements.txt": b"torch"}, ["torch"]),
    ({"setup.py": b"print 'old'\nsetup(install_requires=['x'])", "requirements.txt": b"torch"}, ["torch"]),
    ({"setup.py": b"def main():\n    deps = 'a b'.split()\n    setuptools.setup(install_requires=deps)"}, ["a", "b"]),
    ({"setup.cfg": b"[options]\ninstall_requires =\n    torch\n    numpy>1\n"}, ["torch", "numpy>1"]),
    ({"setup.cfg": b"[options]\ninstall_requires = file: requirements.txt", "requirements.txt": b"torch"}, ["torch"]),
    ({"setup.cfg": b"broken", "requirements.txt": b"torch"}, ["torch"]),
    ({"pyproject.toml": b"[tool.flit.metadata]\nrequires = ['torch']\nmodule = 'x'"}, ["torch"]),
    (
        {"pyproject.toml": b"[project]\ndependencies = ['torch']\noptional-dependencies = {io = [\"lmdb; os_name == 'nt'\"]}"},
        ["torch", 'lmdb; os_name == "nt" and extra == "io"'],
    ),
    # projects of one repository: the source itself first; what they require of each other is here
    (
        {
            "requirements.txt": b"einops<1",
            "packages/a/pyproject.toml": b"[project]\nname = 'acme-a'\ndependencies = ['acme_b>=1', 'einops>=0.7', 'tqdm']",
            "packages/b/setup.py": b"setup(name='acme-b', install_requires=['numpy'])",
        },
        ["einops<1", "einops>=0.7", "tqdm", "numpy"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("texts", "expected"), REQUIRES)
def test_requirements(texts: dict[str, bytes], expected: list[str]) -> None:
    assert list(read_facts(texts).requires) == expected


def test_a_setup_script_is_only_read() -> None:
    """What running it would show is left out; the rest of a list that contains such a part is stated all the same."""
    stated = read_setup_script(SETUP.decode())
    assert stated["package_dir"] == {"": "lib", "old.acme": "source"}
    assert stated["name"] == "acme"
    assert "packages" not in stated
    assert read_setup_script("import sys\nsys.exit(1 / 0)\nsetup(name='a')") == {"name": "a"}
    for text in ("", "setup()", "setup(**x)", "x.append(1)", "setup(*a, name=b)", "\0", "(" * 5000, "-" * 90000 + "1"):
        assert read_setup_script(text) == {}
    assert ast.parse(SETUP)


#: Build settings below `packages/a`, and the roots that they state.
ROOTS: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("pyproject.toml", "", [("src", "")]),
    ("pyproject.toml", "[tool.setuptools.packages.find]\nwhere = ['python', 'more']", [("more", ""), ("python", "")]),
    ("pyproject.toml", "[tool.setuptools.package-dir]\n'' = 'lib'\n'acme.x' = 'x'", [("lib", ""), ("x", "acme.x")]),
    ("pyproject.toml", "[tool.poetry]\npackages = [{include = 'acme', from = 'lib'}, {include = 'b'}]", [("lib", "")]),
    ("pyproject.toml", "[tool.poetry]\npackages = [{include = '*.py', from = 'lib', to = 'acme'}]", [("lib", "acme")]),
    ("pyproject.toml", "[tool.hatch.build.targets.wheel]\npackages = ['lib/acme', 'b']", [("lib", "")]),
    ("pyproject.toml", "[tool.hatch.build]\nsources = ['lib']", [("lib", "")]),
    ("pyproject.toml", "[tool.hatch.build.targets.wheel.sources]\n'source' = 'acme/core'", [("source", "acme.core")]),
    (
        "pyproject.toml",
        "[tool.hatch.build.targets.wheel.force-include]\n'../x' = 'acme'\n'y' = 'acme'",
        [("y", "acme")],
    ),
    ("pyproject.toml", "[tool.pdm.build]\npackage-dir = 'lib'", [("lib", "")]),
    ("pyproject.toml", "[tool.maturin]\npython-source = 'python'", [("python", "")]),
    ("pyproject.toml", "[tool.uv.build-backend]\nmodule-root = ''", [("src", "")]),
    ("pyproject.toml", "[tool.scikit-build.wheel]\npackages = ['python/acme']", [("python", "")]),
    ("pyproject.toml", "tool = 3", [("src", "")]),
    ("setup.cfg", "[options]\npackage_dir =\n    = lib\n    acme = source", [("lib", ""), ("source", "acme")]),
    ("setup.cfg", "[options]\npackages = find:\n[options.packages.find]\nwhere = lib", [("lib", "")]),
    ("setup.py", "setup(package_dir={'': 'lib', 'acme': 'source/'})", [("lib", ""), ("source", "acme")]),
]


@pytest.mark.parametrize(("name", "text", "expected"), ROOTS)
def test_roots(name: str, text: str, expected: list[tuple[str, str]]) -> None:
    assert list(read_facts({name: text.encode()}).roots) == expected
    below = [(f"packages/a/{folder}", package) for folder, package in expected]
    assert list(read_facts({f"packages/a/{name}": text.encode()}).roots) == below


def test_a_wheel_is_laid_out_already() -> None:
    facts = read_facts({"x-1.dist-info/METADATA": METADATA, "pkg/new/setup.py": b"setup(package_dir={'': 'lib'})"})
    assert facts.roots == ()


def test_a_package_may_be_the_root() -> None:
    assert read_facts({"setup.py": b"setup(package_dir={'acme': '.'})"}).roots == (("", "acme"),)
