"""Which values reach the calls that load weights, and which code is reached: one table of snippets each."""

import ast
import textwrap

import pytest

from curate.pretrained import Evidence, find_pretrained

#: (what the case shows, code, texts of the lines that count)
LOADS: list[tuple[str, str, list[str]]] = [
    (
        "a module constant",
        "from torchvision import models\nPRE = True\nm = models.resnet18(pretrained=PRE)",
        ["m = models"],
    ),
    (
        "an attribute set in __init__",
        """
        from torchvision import models
        class Net(nn.Module):
            def __init__(self, in_shape, out_shape, prm, device):
                super().__init__()
                self.weights = "DEFAULT"
                self.build()
            def build(self):
                self.m = models.resnet18(weights=self.weights)
        """,
        ["self.m = models.resnet18(weights=self.weights)"],
    ),
    (
        "a class attribute, inherited",
        """
        from torchvision import models
        class Base(nn.Module):
            PRE = False
            def __init__(self):
                self.m = models.resnet18(pretrained=self.PRE)
        class Mine(Base):
            PRE = True
        m = Mine()
        """,
        ["self.m = models.resnet18(pretrained=self.PRE)"],
    ),
    (
        "the default of a class that is never built",
        """
        from torchvision.models import resnet18
        class Net(nn.Module):
            def __init__(self, in_shape, pretrained: bool = True):
                self.m = resnet18(pretrained=pretrained)
        """,
        ["self.m = resnet18(pretrained=pretrained)"],
    ),
    (
        "the default of a function that is called without it",
        """
        from torchvision.models import resnet18
        def build(n, weights='DEFAULT'):
            return resnet18(weights=weights)
        m = build(10)
        """,
        ["return resnet18(weights=weights)"],
    ),
    (
        "an argument over the default",
        """
        from torchvision.models import resnet18
        class Body(nn.Module):
            def __init__(self, pretrained=False):
                w = ResNet18_Weights.DEFAULT if pretrained else None
                self.m = resnet18(weights=w)
        class Net(nn.Module):
            def __init__(self, in_shape, out_shape, prm, device):
                self.a = Body()
                self.b = Body(True)
        """,
        ["self.m = resnet18(weights=w)"],
    ),
    (
        "**kwargs",
        """
        from torchvision.models import resnet18
        def build(**kwargs):
            return resnet18(**kwargs)
        m = build(pretrained=True)
        """,
        ["return resnet18(**kwargs)"],
    ),
    (
        "a dict of options",
        "import timm\nC = dict(pretrained=True)\nm = timm.create_model('x', **C)",
        ["m = timm.create_model('x', **C)"],
    ),
    (
        "super().__init__",
        """
        from torchvision.models import resnet18
        class Base(nn.Module):
            def __init__(self, pretrained):
                self.m = resnet18(pretrained=pretrained)
        class Mine(Base):
            def __init__(self):
                super().__init__(pretrained=True)
        m = Mine()
        """,
        ["self.m = resnet18(pretrained=pretrained)"],
    ),
    (
        "kwargs.pop",
        "import timm\ndef f(**kw):\n    return timm.create_model('x', pretrained=kw.pop('p', True))",
        ["return"],
    ),
    (
        "prm.get",
        "import timm\ndef f(prm):\n    return timm.create_model('x', pretrained=prm.get('p', 1) > 0.5)",
        ["return"],
    ),
    (
        "not, or",
        "import timm\nSCRATCH = None\nm = timm.create_model('x', pretrained=not SCRATCH or False)",
        ["m = timm"],
    ),
    (
        "an unknown condition",
        "import torch, os\nif os.path.exists('a'):\n    m.load_state_dict(torch.load('a'))",
        ["m.load_st"],
    ),
    (
        "both sides of a setting",
        """
        from torchvision.models import resnet18, resnet50
        def build(prm):
            if prm['deep']:
                return resnet50(True)
            return resnet18(True)
        """,
        ["return resnet50(True)", "return resnet18(True)"],
    ),
    (
        "a name that the caller chooses",
        """
        from torchvision.models import resnet18, resnet50
        def build(name):
            if name == 'resnet18':
                return resnet18(True)
            elif name == 'resnet50':
                m = resnet50(pretrained=False)
            return m
        """,
        ["return resnet18(True)"],
    ),
    (
        "lambda, nested function, property, static method",
        """
        from torchvision.models import resnet18
        class Net(nn.Module):
            def __init__(self, in_shape, out_shape, prm, device):
                def inner():
                    return resnet18(True), 1
                self.a = inner()
                self.b = (lambda: resnet18(True))()
                self.c = self.body
                self.d = self.make(True)
            @property
            def body(self):
                return resnet18(True), 2
            @staticmethod
            def make(pretrained):
                return resnet18(pretrained)
        """,
        ["return resnet18(True), 1", "self.b =", "return resnet18(True), 2", "return resnet18(pretrained)"],
    ),
    (
        "an option added",
        "import timm\nC = {}\nC.update(pretrained=True)\nm = timm.create_model('x', **C)",
        ["m = timm"],
    ),
    (
        "a table of lambdas",
        "import timm\nT = {'a': lambda: timm.create_model('x', True)}\nm = T.get(name)()",
        ["T = {'a': lambda: timm"],
    ),
    (
        "a field of a dataclass",
        """
        import timm
        @dataclass
        class Options:
            name: str
            pretrained: bool = True
        o = Options('x')
        m = timm.create_model(o.name, pretrained=o.pretrained)
        """,
        ["m = timm.create_model"],
    ),
    (
        "a method called on parts that cannot be told apart",
        """
        import timm
        class Part(nn.Module):
            def __init__(self, pretrained=True):
                self.pretrained = pretrained
            def setup(self):
                self.m = timm.create_model('a', self.pretrained)
        class Net(nn.Module):
            def __init__(self, in_shape, out_shape, prm, device):
                self.parts = nn.ModuleList([Part(False), Part()])
                for part in self.parts:
                    part.setup()
        """,
        ["self.m = timm.create_model('a', self.pretrained)"],
    ),
    (
        "the same call under a switch, then without",
        """
        from torchvision.models import resnet18
        def build():
            return resnet18(True)
        def both(prm):
            if prm['twice']:
                build()
            return build()
        """,
        ["return resnet18(True)"],
    ),
    (
        "over several lines",
        "import timm\nm = timm.create_model(\n    'x',\n    pretrained=True,\n)",
        ["m = timm.create_model("],
    ),
]

#: (what the case shows, code): nothing in it loads trained weights.
SCRATCH: list[tuple[str, str]] = [
    (
        "a class of the file that ignores it",
        "class Body(nn.Module):\n    def __init__(self, pretrained):\n        self.p = pretrained\nm = Body(True)",
    ),
    (
        "an argument over the default",
        """
        from torchvision.models import resnet18
        class Backbone(nn.Module):
            def __init__(self, pretrained=True):
                self.m = resnet18(pretrained=pretrained)
        m = Backbone(pretrained=False)
        """,
    ),
    (
        "a default of False",
        """
        import torch
        from torchvision.models import resnet18, ResNet18_Weights
        def build(pretrained: bool = False, weights=None):
            m = resnet18(weights=ResNet18_Weights.DEFAULT if pretrained else None)
            if pretrained:
                m.load_state_dict(torch.load('a.pth'))
            if weights is not None:
                m.load_state_dict(weights.get_state_dict())
            return m
        """,
    ),
    (
        "a helper that only dead code calls",
        """
        from torch.hub import load_state_dict_from_url
        def fetch(m, url='https://x'):
            m.load_state_dict(load_state_dict_from_url(url))
        def build(pretrained=False):
            if pretrained:
                fetch(Net())
        """,
    ),
    (
        "after an early return",
        """
        import torch
        def build(pretrained=False):
            if not pretrained:
                return Net()
            m = Net()
            m.load_state_dict(torch.load('a.pth'))
            return m
        """,
    ),
    ("a later value", "import timm\nPRE = True\nPRE = False\nm = timm.create_model('x', pretrained=PRE)"),
    ("a script", "import timm\nif __name__ == '__main__':\n    m = timm.create_model('x', pretrained=True)"),
    ("prm.get", "import timm\ndef f(prm):\n    return timm.create_model('x', pretrained=prm.get('pretrained', False))"),
    ("prm[...]", "import timm\ndef f(prm):\n    return timm.create_model('x', pretrained=prm['pretrained'] > 0.5)"),
    (
        "a switch that the caller sets",
        "import torch\ndef f(prm, m):\n    if prm['p']:\n        m.load_state_dict(torch.load('a'))",
    ),
    (
        "a choice that the caller makes",
        "from torchvision.models import resnet18\ndef f(prm):\n    m = resnet18(weights='A' if prm['p'] else None)",
    ),
    ("a path that the caller gives", "import torch\ndef restore(m, path):\n    m.load_state_dict(torch.load(path))"),
    (
        "weights that the caller gives",
        "def f(m, weights):\n    if weights is not None:\n        m.load_state_dict(weights.get_state_dict())",
    ),
    (
        "a field of a dataclass",
        """
        import timm
        @dataclass
        class Options:
            name: str
            pretrained: bool = True
        o, p = Options('x', False), Options('x', pretrained=False)
        m = timm.create_model(o.name, pretrained=o.pretrained or p.pretrained)
        """,
    ),
    (
        "a method that only dead code calls",
        """
        import torch
        class Net(nn.Module):
            def __init__(self, in_shape, out_shape, prm, device):
                if in_shape is None:
                    self.restore()
                if False:
                    self.restore()
            def restore(self, path='a.pth'):
                self.load_state_dict(torch.load(path))
        """,
    ),
    ("and, not", "import timm\nA = True\nm = timm.create_model('x', pretrained=A and not A)"),
    ("bool(None)", "import timm\nm = timm.create_model('x', pretrained=bool(None))"),
]


def find(code: str) -> tuple[Evidence, ...]:
    return find_pretrained(code, ast.parse(code))


@pytest.mark.parametrize(("code", "texts"), [c[1:] for c in LOADS], ids=[c[0] for c in LOADS])
def test_lines_that_load_are_found(code: str, texts: list[str]) -> None:
    code = textwrap.dedent(code)
    found = find(code)
    assert len(found) == len(texts), found
    assert all(one.text.startswith(text) for one, text in zip(found, texts, strict=True)), found
    assert [one.text for one in found] == [code.split("\n")[one.line - 1].strip() for one in found]


@pytest.mark.parametrize("code", [c[1] for c in SCRATCH], ids=[c[0] for c in SCRATCH])
def test_from_scratch(code: str) -> None:
    assert find(textwrap.dedent(code)) == ()


@pytest.mark.parametrize(("code", "texts"), [c[1:] for c in LOADS], ids=[c[0] for c in LOADS])
def test_code_that_never_runs_does_not_count(code: str, texts: list[str]) -> None:
    body = textwrap.indent(textwrap.dedent(code).replace("import *", "import resnet18"), "    ")
    assert find(f"if __name__ == '__main__':\n{body}\n") == ()
