"""Which calls load trained weights, and which resemble them: adversarial cases, one table of snippets each.

`MISSED` and `MISTAKEN` are what a plain rule cannot tell; docs/similarity.md states them.
"""

import ast
import textwrap

import pytest

from curate.features import code_features
from curate.pretrained import Evidence, find_pretrained

#: (what the case shows, code, texts of the lines that count)
LOADS: list[tuple[str, str, list[str]]] = [
    (
        "weights by name",
        "from torchvision.models import resnet18\nm = resnet18(weights='DEFAULT')",
        ["m = resnet18(weights='DEFAULT')"],
    ),
    (
        "a member of a weights enumeration",
        "from torchvision.models import resnet18, ResNet18_Weights as W\nm = resnet18(weights=W.DEFAULT)",
        ["m = resnet18(weights=W.DEFAULT)"],
    ),
    (
        "get_weight",
        "import torchvision\nw = torchvision.models.get_weight('X')\nm = torchvision.models.resnet18(weights=w)",
        ["m = torchvision.models.resnet18(weights=w)"],
    ),
    (
        "pretrained",
        "from torchvision import models\nm = models.vgg16(pretrained=True)",
        ["m = models.vgg16(pretrained=True)"],
    ),
    ("pretrained of an unknown package", "import nets\nm = nets.build('x', pretrained='imagenet')", ["m = nets.build"]),
    ("old first positional", "from torchvision.models import resnet18\nm = resnet18(True)", ["m = resnet18(True)"]),
    (
        "new first positional",
        "from torchvision.models import *\nimport torchvision.models as tv\nm = tv.resnet18(ResNet18_Weights.DEFAULT)",
        ["m = tv.resnet18"],
    ),
    (
        "a module of models",
        "from torchvision.models.resnet import resnet50\nm = resnet50(True)",
        ["m = resnet50(True)"],
    ),
    (
        "get_model",
        "import torchvision\nm = torchvision.models.get_model('resnet18', weights='DEFAULT')",
        ["m = torchvision.models.get_model"],
    ),
    (
        "models.__dict__",
        "from torchvision import models\nm = models.__dict__['resnet18'](pretrained=True)",
        ["m = models.__dict__"],
    ),
    ("getattr", "from torchvision import models\nm = getattr(models, prm['n'])(weights='DEFAULT')", ["m = getattr"]),
    (
        "a table of builders",
        "from torchvision import models\nB = {'a': models.vgg16, 'b': models.resnet18}\nm = B[name](pretrained=True)",
        ["m = B[name](pretrained=True)"],
    ),
    (
        "detection weights_backbone",
        "from torchvision.models import detection as d\nm = d.build_x(weights_backbone='DEFAULT')",
        ["m = d.build_x"],
    ),
    (
        "backbone helper",
        "from torchvision.models.detection import backbone_utils as b\nm = b.resnet_fpn_backbone('resnet50', True)",
        ["m = b.resnet_fpn_backbone"],
    ),
    ("timm", "import timm\nm = timm.create_model('vit', pretrained=True)", ["m = timm"]),
    ("timm by position", "from timm import create_model\nm = create_model('vit', True)", ["m = create_model"]),
    ("timm checkpoint", "import timm\nm = timm.create_model('vit', checkpoint_path='a.pth')", ["m = timm"]),
    (
        "from_pretrained",
        "from transformers import AutoModel\nm = AutoModel.from_pretrained('bert')",
        ["m = AutoModel.from_pretrained"],
    ),
    (
        "from_pretrained of a class of the file with an outside base",
        "from transformers import BertModel\nclass Mine(BertModel):\n    pass\nm = Mine.from_pretrained('bert')",
        ["m = Mine.from_pretrained"],
    ),
    (
        "from_pretrained behind a failed import",
        """
        try:
            from transformers import BertModel as B
        except ImportError:
            B = None
        m = B.from_pretrained('bert')
        """,
        ["m = B.from_pretrained"],
    ),
    ("torch.hub.load", "import torch\nm = torch.hub.load('a/b', 'net')", ["m = torch.hub.load"]),
    ("torch.hub.load, told so", "import torch\nm = torch.hub.load('a/b', 'net', pretrained=True)", ["m = torch.hub"]),
    ("hub under its own name", "from torch import hub\nm = hub.load('a/b', 'net')", ["m = hub.load"]),
    (
        "load_state_dict_from_url",
        "from torch.hub import load_state_dict_from_url as fetch\ns = fetch('https://x')",
        ["s = fetch"],
    ),
    (
        "model_zoo",
        "import torch.utils.model_zoo as model_zoo\ns = model_zoo.load_url(U)",
        ["s = model_zoo.load_url(U)"],
    ),
    ("checkpoint", "import torch\nm.load_state_dict(torch.load('a.pth'))", ["m.load_state_dict"]),
    (
        "checkpoint through variables",
        """
        import torch
        ckpt = torch.load('a.pth', map_location='cpu')
        state = ckpt['model'] if 'model' in ckpt else ckpt
        state = {k.replace('module.', ''): v for k, v in state.items()}
        m.load_state_dict(state, strict=False)
        """,
        ["m.load_state_dict(state, strict=False)"],
    ),
    (
        "checkpoint through methods",
        """
        import torch
        class Net(nn.Module):
            PATH = 'a.pth'
            def __init__(self, in_shape, out_shape, prm, device):
                self.state = self.read()
                self.restore(self.state)
            def read(self):
                return torch.load(self.PATH)
            def restore(self, state):
                self.body.load_state_dict(state)
        """,
        ["self.body.load_state_dict(state)"],
    ),
    (
        "weights.get_state_dict",
        "from torchvision.models import VGG16_Weights as W\nm.load_state_dict(W.DEFAULT.get_state_dict())",
        ["m.load"],
    ),
    ("safetensors", "from safetensors.torch import load_file\ns = load_file('a.safetensors')", ["s = load_file"]),
    ("torchscript", "import torch\nm = torch.jit.load('a.pt')", ["m = torch.jit.load"]),
    (
        "a parameter",
        "import torch\nw = torch.load('a.pt').clone()\np = torch.nn.Parameter(w)",
        ["p = torch.nn.Parameter(w)"],
    ),
    ("copy_", "import torch\nw = torch.load('a.pt')\nm.weight.copy_(w)", ["m.weight.copy_(w)"]),
    (
        "trained word vectors",
        "import torch, numpy as np\nv = np.load('a.npy')\ne = torch.nn.Embedding.from_pretrained(torch.tensor(v))",
        ["e = torch.nn.Embedding"],
    ),
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
        "kwargs.pop",
        "import timm\ndef f(**kw):\n    return timm.create_model('x', pretrained=kw.pop('p', True))",
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
        "a table of lambdas",
        "import timm\nT = {'a': lambda: timm.create_model('x', True)}\nm = T.get(name)()",
        ["T = {'a': lambda: timm"],
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
        "docstring, comment, string",
        'import torch\n"""pretrained=True"""\n# torch.hub.load(1)\ns = "from_pretrained(1)"',
    ),
    ("None", "from torchvision.models import resnet18\nm = resnet18(weights=None, pretrained=False)"),
    ("no argument", "from torchvision.models import resnet18\nm = resnet18(num_classes=10)\nn = resnet18()"),
    ("old first positional", "from torchvision.models import resnet18\nm = resnet18(False)"),
    ("a class of torchvision", "from torchvision.models.resnet import ResNet\nm = ResNet('weights', True)"),
    (
        "told to leave the backbone",
        "from torchvision.models.segmentation import fcn_resnet50\nm = fcn_resnet50(weights_backbone=None)",
    ),
    ("box coder", "from torchvision.models.detection import _utils as u\nc = u.BoxCoder(weights=(1.0, 1.0, 1.0, 1.0))"),
    (
        "feature extractor",
        "from torchvision.models.feature_extraction import create_feature_extractor as c\nm = c(n, True)",
    ),
    ("timm", "import timm\nm = timm.create_model('x', pretrained=False)\nn = timm.create_model('x')"),
    ("tokenizer", "from transformers import AutoTokenizer\nt = AutoTokenizer.from_pretrained('bert')"),
    (
        "configuration",
        "from transformers import BertConfig as C, AutoModel\nm = AutoModel.from_config(C.from_pretrained('x'))",
    ),
    ("processor", "import transformers\nt = transformers.ViTImageProcessor.from_pretrained('x')"),
    ("noise scheduler", "from diffusers import DDPMScheduler\ns = DDPMScheduler.from_pretrained('x')"),
    ("hub, told not to", "import torch\nm = torch.hub.load('a/b', 'net', pretrained=False)"),
    ("hub, weights None", "import torch\nm = torch.hub.load('a/b', 'net', weights=None)"),
    ("own state", "import copy\nstate = copy.deepcopy(m.state_dict())\nm.load_state_dict(state)"),
    ("optimizer", "import torch\nopt = torch.optim.SGD(p)\nopt.load_state_dict(torch.load('opt.pth'))"),
    ("optimizer by name", "import torch\ndef f(self):\n    self.optimizer.load_state_dict(torch.load('opt.pth'))"),
    ("data", "import torch\nvocab = torch.load('vocab.pt')\nn = len(vocab)\nt = vocab['a'].to('cpu')"),
    ("word vectors of one's own", "import torch\ne = torch.nn.Embedding.from_pretrained(torch.eye(5))"),
    (
        "class weights",
        "import torch.nn.functional as F, torch\nx = F.cross_entropy(a, b, weight=w)\ny = torch.bincount(x, weights=w)",
    ),
    ("averages", "import numpy as np\nx = np.average(y, weights=[1, 2])\nz = np.histogram(y, weights='pretrained')"),
    (
        "sampler",
        "from torch.utils.data import WeightedRandomSampler\ns = WeightedRandomSampler(weights=[1, 2], num_samples=3)",
    ),
    ("random.choices", "import random\nx = random.choices(y, weights=(1, 2))"),
    ("sklearn", "from sklearn.neighbors import KNeighborsClassifier\nk = KNeighborsClassifier(weights='distance')"),
    (
        "init_weights",
        "class Net(nn.Module):\n    def __init__(self, init_weights=True):\n        self.init(pretrained_size=3)",
    ),
    ("a table of options", "c = dict(pretrained=True, weights='DEFAULT')\nd = {'pretrained': True}"),
    ("smp", "import segmentation_models_pytorch as smp\nm = smp.Unet('resnet34', encoder_weights=None)"),
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

#: Loads trained weights, and the rule does not find the line (the third part) that does.
MISSED: list[tuple[str, str, list[str]]] = [
    (
        "a builder under another name",
        "from torchvision import models\nbuild = models.resnet18\nm = build(True)",
        ["m = build(True)"],
    ),
    (
        "partial",
        "import timm\nfrom functools import partial\nb = partial(timm.create_model, pretrained=True)\nm = b()",
        ["m = b()"],
    ),
    (
        "detection backbones are trained by default",
        "from torchvision.models.detection import retinanet_resnet50_fpn\nm = retinanet_resnet50_fpn(weights=None)",
        ["m = retinanet_resnet50_fpn(weights=None)"],
    ),
    (
        "checkpoint through a loop, and update",
        """
        import torch
        old, new = torch.load('a.pth'), {}
        for k, v in old.items():
            new[k[7:]] = v
        own = m.state_dict()
        own.update(new)
        m.load_state_dict(own)
        """,
        ["m.load_state_dict(own)"],
    ),
    ("a whole model", "import torch\nm = torch.load('a.pt')\nm.eval()", ["m.eval()"]),
    ("in place of data", "import torch\nw = torch.load('a.pt')\nm.weight.data = w", ["m.weight.data = w"]),
    ("smp, by default", "import segmentation_models_pytorch as smp\nm = smp.Unet('resnet34')", ["m = smp.Unet"]),
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
        "prm.get",
        "import timm\ndef f(prm):\n    return timm.create_model('x', pretrained=prm.get('p', 1) > 0.5)",
        ["return"],
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
        "an option added",
        "import timm\nC = {}\nC.update(pretrained=True)\nm = timm.create_model('x', **C)",
        ["m = timm"],
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
]

#: Loads no trained weights, and the rule says that it does.
MISTAKEN: list[tuple[str, str]] = [
    ("hub, tokenizer", "import torch\nt = torch.hub.load('huggingface/pytorch-transformers', 'tokenizer', 'bert')"),
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
]


def find(code: str) -> tuple[Evidence, ...]:
    code = textwrap.dedent(code)
    return find_pretrained(code, ast.parse(code))


@pytest.mark.parametrize(("code", "texts"), [c[1:] for c in LOADS], ids=[c[0] for c in LOADS])
def test_lines_that_load_are_found(code: str, texts: list[str]) -> None:
    found, lines = find(code), textwrap.dedent(code).split("\n")
    assert len(found) == len(texts), found
    assert all(one.text.startswith(text) for one, text in zip(found, texts, strict=True)), found
    assert [one.text for one in found] == [lines[one.line - 1].strip() for one in found]


@pytest.mark.parametrize("code", [c[1] for c in SCRATCH], ids=[c[0] for c in SCRATCH])
def test_from_scratch(code: str) -> None:
    assert find(code) == ()


def test_what_the_rule_cannot_see_is_as_documented() -> None:
    for what, code, texts in MISSED:
        assert [one.text for one in find(code)] != texts, f"{what}: found now, and belongs to LOADS"
    for what, code in MISTAKEN:
        assert find(code), f"{what}: told apart now, and belongs to SCRATCH"


@pytest.mark.parametrize("code", [c[1] for c in LOADS + MISSED], ids=[c[0] for c in LOADS + MISSED])
def test_code_that_never_runs_does_not_count(code: str) -> None:
    body = textwrap.indent(textwrap.dedent(code).replace("import *", "import resnet18"), "    ")
    assert find(f"if __name__ == '__main__':\n{body}\n") == ()


def test_text_is_cut_and_lines_are_those_of_the_parser() -> None:
    code = "import timm\r\nx = '\x0c'\r\n   \r\nm = timm.create_model('" + "a" * 300 + "', pretrained=True)\r\n"
    (found,) = find(code)
    assert found.line == 4
    assert len(found.text) == 160
    assert found.text.startswith("m = timm.create_model('aaa")


def test_lines_come_in_order() -> None:
    code = "import timm\ndef f():\n    return timm.create_model('x', True)\nm = timm.create_model('y', True)\nf()"
    assert [one.line for one in find(code)] == [3, 4]


@pytest.mark.parametrize(
    "code",
    [
        "m = " + "f(pretrained=" * 90 + "1" + ")" * 90,
        "m = x" + ".to(pretrained=1)" * 900,
        "x = " + "[" * 90 + "]" * 90 + "\nm = f(pretrained=x)",
        "def f(a, b=True):\n    return f(a + [a], [b])\nm = g(pretrained=f(1))",
        "def f(x):\n    return g([x])\ndef g(x):\n    return f([x])\nm = h(pretrained=f(1))",
        "".join(f"def f{i}(x):\n    f{i + 1}([x])\n    return f{i + 1}([x, 1])\n" for i in range(40))
        + "m = g(pretrained=f0(1))",
    ],
    ids=["calls", "methods", "lists", "recursion", "mutual recursion", "many calls"],
)
def test_any_code_is_read_in_bounded_time(code: str) -> None:
    assert not isinstance(code_features(f"import timm\n{code}\n"), str)
