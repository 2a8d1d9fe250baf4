"""Repositories of any layout: a block copies from the file that the import means, and nothing is asked of an index.

Each layout has a class that imports another by an absolute name. Which of the files with that name is meant is the
file whose `MARK` the block returns.
"""

from typing import Any

import pytest

from extract.arguments.trials import classify_error
from extract.emit.emit import Emitted
from tests.builders.suites import table

NET = """from torch import nn
from {imported} import Norm
class Net(nn.Module):
    def forward(self, x): return Norm()(x)
"""
NORM = """from torch import nn
class Norm(nn.Module):
    def forward(self, x): return {mark!r}
"""


@table(__file__, "layouts.md", "Layouts", globals())
def test_the_file_that_is_meant(
    corpus: Any, run: Any, net: str, imported: str, module: str, norm: str, others: str, settings: dict[str, str]
) -> None:
    """Args: net: its file, with the name it imports and its module. norm: the file that is meant. settings: of the build."""
    files = {net: NET.format(imported=imported), norm: NORM.format(mark="this"), **settings}
    for path in others.split():
        files[path] = "" if path.endswith("__init__.py") else NORM.format(mark="another")
    emitted = corpus(files, bare=True).emit(f"{module}.Net")
    assert isinstance(emitted, Emitted), emitted
    assert emitted.packages == {}
    assert run(emitted.code)["Net"]()(1) == "this"


def test_a_module_is_not_what_it_imports(corpus: Any) -> None:
    """`logs/wandb.py` wraps the package of that name; so does a file that no table knows."""
    code = (
        "import gone_pkg_\nfrom torch import nn\nclass A(nn.Module):\n    def forward(self, x): return gone_pkg_.f(x)\n"
    )
    emitted = corpus({"logs/gone_pkg_.py": code}, bare=True).emit("A")
    assert list(emitted.packages) == ["gone_pkg_"]


def test_two_equally_near_files_are_a_doubt_and_a_required_package_is_no_folder(corpus: Any) -> None:
    net = NET.format(imported="norm")
    files = {"net.py": net, "a/norm.py": NORM.format(mark=1), "b/norm.py": NORM.format(mark=2)}
    assert not isinstance(corpus(files, bare=True).emit("Net"), Emitted)
    files = {"exp/net.py": net, "exp/norm.py": NORM.format(mark=1), "requirements.txt": "norm>=1"}
    assert corpus(files, bare=True).emit("Net").packages == {"norm": "norm"}


@pytest.mark.parametrize("required", [True, False])
def test_a_required_import_is_an_import(corpus: Any, required: bool) -> None:
    code = "from gone_pkg_ import f\nfrom torch import nn\nclass A(nn.Module):\n    def forward(self, x): return f(x)\n"
    setup = f"setup(install_requires=['gone-pkg{'' if required else '-x'}'])"
    lines = corpus({"a.py": code, "setup.py": setup}, bare=True).emit("A").code.splitlines()
    assert ("from gone_pkg_ import f" in lines) == required
    assert ("    from gone_pkg_ import f" in lines) != required


VERSIONS = """from torch import nn
try:
    from gone_pkg.new import f
except ImportError:
    from gone_pkg.old import f
try:
    import gone_compiler
except ImportError as error:
    raise RuntimeError from error
@gone_compiler.jit
def kernel(x): return x
class A(nn.Module):
    def forward(self, x, y: Size = 1): return kernel(f(x))
"""


def test_of_two_versions_of_a_required_package_the_newer_is_imported(corpus: Any) -> None:
    settings = {"setup.py": "setup(install_requires=['gone-pkg'])"}
    code = VERSIONS.replace("from torch", "from gone_pkg.kinds import Size\nfrom torch", 1)
    lines = corpus({"a.py": code, **settings}, bare=True).emit("A").code.splitlines()
    assert "from gone_pkg.new import f" in lines
    assert not any("gone_pkg.old" in line for line in lines)
    # Who evaluates the annotation finds the type: its package is imported anyway.
    assert "from gone_pkg.kinds import Size" in lines
    # The kernel's compiler is not installed, which matters only where the kernel is called.
    at = lines.index("def kernel(x): return x")
    assert lines[at - 1] == "@lambda _: gone_compiler"


def test_a_type_of_a_package_that_nothing_else_needs_is_not_imported(corpus: Any) -> None:
    code = "from gone_pkg.kinds import Size\nfrom torch import nn\nclass A(nn.Module):\n    def forward(self, x: Size): return x\n"
    emitted = corpus({"a.py": code, "setup.py": "setup(install_requires=['gone-pkg'])"}, bare=True).emit("A")
    assert "Size = object" in emitted.code.splitlines()
    assert emitted.requires == ()


EXTENSIONS = """from torch import nn
from . import roi_cuda
from acme._CXX import encode as _encode
class A(nn.Module):
    def forward(self, x): return x
    def update(self, x): return _encode(x)
    def pool(self, x): return roi_cuda.pool(x)
"""


def test_a_compiled_operator_fails_where_it_is_called(corpus: Any, run: Any) -> None:
    emitted = corpus({"acme/__init__.py": "", "acme/a.py": EXTENSIONS}, bare=True).emit("A")
    block = run(emitted.code)["A"]()
    assert block(2) == 2
    for method, extension in ((block.update, "acme._CXX"), (block.pool, "roi_cuda")):
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{extension}'") as failure:
            method(2)
        assert classify_error(failure.value) == "native_op"


@pytest.mark.parametrize(
    ("tried", "handler", "there"),
    [
        ("from . import _C", "HAS = False", False),
        ("from acme import _C as _ext", "_ext, HAS = None, False", False),
        (
            "import acme._ext as _ext",
            "from torch.utils.cpp_extension import load\n    _ext, HAS = load('_ext'), True",
            True,
        ),
        ("from . import _C", "from . import b as _C\n    HAS = False", False),
        ("from . import _C", "A = None", True),  # only a message for those who call it
    ],
)
def test_the_fallback_for_an_extension(corpus: Any, run: Any, tried: str, handler: str, there: bool) -> None:
    method = "    def forward(self, x): return (HAS, _C.run(x)) if x else HAS"
    code = f"class A(nn.Module):\n{method}\ntry:\n    {tried}\n    HAS = True\nexcept ImportError:\n    {handler}\n"
    made = corpus(
        {"acme/__init__.py": "", "acme/b.py": "run = abs", "acme/a.py": f"from torch import nn\n{code}"}, bare=True
    )
    assert run(made.emit("A").code)["A"]()(0) is there
