"""Which calls load trained weights, and which resemble them: adversarial files, marked line by line.

`# loads`: counts, and is found. `# missed` and `# mistaken`: what a plain rule cannot tell (docs/similarity.md states
them): counts and is not found, or is found and does not count. A line without a mark is from scratch.
"""

import re
import textwrap

import pytest

from curate.model.features import code_features
from curate.model.pretrained import Evidence, find_pretrained

FILES = """
## torchvision
import torchvision, torchvision.models as tv
from torchvision import models
from torchvision.models import resnet18, resnet50, ResNet18_Weights as W
from torchvision.models.resnet import ResNet, resnet34
from torchvision.models.detection import backbone_utils as utils, _utils as coder, retinanet_resnet50_fpn
from torchvision.models.segmentation import fcn_resnet50
from torchvision.models.feature_extraction import create_feature_extractor as extract
m = resnet18(weights='DEFAULT')  # loads
m = resnet18(weights=W.DEFAULT)  # loads
m = resnet18(True)  # loads
m = resnet34(True)  # loads
m = tv.resnet18(W.DEFAULT)  # loads
m = models.vgg16(pretrained=True)  # loads
w = torchvision.models.get_weight('X')
m = tv.resnet18(weights=w)  # loads
m = torchvision.models.get_model('resnet18', weights='DEFAULT')  # loads
m = models.__dict__['resnet18'](pretrained=True)  # loads
m = getattr(models, prm['n'])(weights='DEFAULT')  # loads
BUILDERS = {'a': models.vgg16, 'b': models.resnet18}
m = BUILDERS[name](pretrained=True)  # loads
m = retinanet_resnet50_fpn(weights_backbone='DEFAULT')  # loads
m = utils.resnet_fpn_backbone('resnet50', True)  # loads
m = resnet18(weights=None, pretrained=False)
m = resnet18(num_classes=10)
m = resnet18()
m = resnet18(False)
m = ResNet('weights', True)
m = fcn_resnet50(weights_backbone=None)
c = coder.BoxCoder(weights=(1.0, 1.0, 1.0, 1.0))
m = extract(n, True)
m = retinanet_resnet50_fpn(weights=None)  # missed
build = models.resnet18
m = build(True)  # missed

## a star import
from torchvision.models import *
import torchvision.models as tv
m = tv.resnet18(ResNet18_Weights.DEFAULT)  # loads

## other packages
import timm, transformers, nets, torch, torch.utils.model_zoo as zoo, segmentation_models_pytorch as smp
from functools import partial
from timm import create_model
from torch import hub
from torch.hub import load_state_dict_from_url as fetch
from transformers import AutoModel, AutoTokenizer, BertConfig as C, BertModel
from diffusers import DDPMScheduler
from safetensors.torch import load_file
try:
    from transformers import ViTModel as V
except ImportError:
    V = None
class Mine(BertModel):
    pass
m = nets.build('x', pretrained='imagenet')  # loads
m = timm.create_model('vit', pretrained=True)  # loads
m = create_model('vit', True)  # loads
m = timm.create_model('vit', checkpoint_path='a.pth')  # loads
m = timm.create_model(  # loads
    'x',
    pretrained=True,
)
T = {'a': lambda: timm.create_model('x', True)}  # loads
m = AutoModel.from_pretrained('bert')  # loads
m = Mine.from_pretrained('bert')  # loads
m = V.from_pretrained('bert')  # loads
m = torch.hub.load('a/b', 'net')  # loads
m = torch.hub.load('a/b', 'net', pretrained=True)  # loads
m = hub.load('a/b', 'net')  # loads
s = fetch('https://x')  # loads
s = zoo.load_url(U)  # loads
s = load_file('a.safetensors')  # loads
m = torch.jit.load('a.pt')  # loads
m = timm.create_model('x', pretrained=False)
m = timm.create_model('x')
t = AutoTokenizer.from_pretrained('bert')
m = AutoModel.from_config(C.from_pretrained('x'))
t = transformers.ViTImageProcessor.from_pretrained('x')
s = DDPMScheduler.from_pretrained('x')
m = torch.hub.load('a/b', 'net', pretrained=False)
m = torch.hub.load('a/b', 'net', weights=None)
t = torch.hub.load('huggingface/pytorch-transformers', 'tokenizer', 'bert')  # mistaken
m = smp.Unet('resnet34', encoder_weights=None)
m = smp.Unet('resnet34')  # missed
b = partial(timm.create_model, pretrained=True)  # loads
m = b()

## checkpoints
import torch, numpy as np, copy
m.load_state_dict(torch.load('a.pth'))  # loads
ckpt = torch.load('a.pth', map_location='cpu')
state = ckpt['model'] if 'model' in ckpt else ckpt
state = {k.replace('module.', ''): v for k, v in state.items()}
m.load_state_dict(state, strict=False)  # loads
m.load_state_dict(VGG16_Weights.DEFAULT.get_state_dict())  # loads
w = torch.load('a.pt').clone()
p = torch.nn.Parameter(w)  # loads
m.weight.copy_(w)  # loads
vectors = np.load('a.npy')
e = torch.nn.Embedding.from_pretrained(torch.tensor(vectors))  # loads
class Net(nn.Module):
    PATH = 'a.pth'
    def __init__(self, in_shape, out_shape, prm, device):
        self.state = self.read()
        self.restore(self.state)
    def read(self):
        return torch.load(self.PATH)
    def restore(self, given):
        self.body.load_state_dict(given)  # missed
if os.path.exists('a'):
    m.load_state_dict(torch.load('a'))  # loads
own = copy.deepcopy(m.state_dict())
m.load_state_dict(own)
opt = torch.optim.SGD(p)
opt.load_state_dict(torch.load('opt.pth'))
def resume(self):
    self.optimizer.load_state_dict(torch.load('opt.pth'))
vocab = torch.load('vocab.pt')
t = vocab['a'].to('cpu')
e = torch.nn.Embedding.from_pretrained(torch.eye(5))
def restore_from(m, path):
    m.load_state_dict(torch.load(path))
old, new = torch.load('a.pth'), {}
for k, v in old.items():
    new[k[7:]] = v
target = m.state_dict()
target.update(new)
m.load_state_dict(target)  # missed
whole = torch.load('a.pt')
whole.eval()  # missed
m.weight.data = w  # missed

## what has such words and loads nothing
import torch, random, numpy as np, torch.nn.functional as F
from sklearn.neighbors import KNeighborsClassifier
from torch.utils.data import WeightedRandomSampler
'''pretrained=True'''  # torch.hub.load(1)
s = "from_pretrained(1)"
x = F.cross_entropy(a, b, weight=w)
y = torch.bincount(x, weights=w)
x = np.average(y, weights=[1, 2])
z = np.histogram(y, weights='pretrained')
s = WeightedRandomSampler(weights=[1, 2], num_samples=3)
x = random.choices(y, weights=(1, 2))
k = KNeighborsClassifier(weights='distance')
c = dict(pretrained=True, weights='DEFAULT')
d = {'pretrained': True}
class Net(nn.Module):
    def __init__(self, init_weights=True):
        self.init(pretrained_size=3)
class Body(nn.Module):
    def __init__(self, pretrained):
        self.p = pretrained
m = Body(True)

## constants and conditions
import timm, torch
from torchvision.models import resnet18, resnet50
YES = True
NONE = None
LATER = True
LATER = False
m = timm.create_model('x', pretrained=YES)  # loads
m = timm.create_model('x', pretrained=not NONE or False)  # missed
m = timm.create_model('x', pretrained=LATER)  # mistaken
m = timm.create_model('x', pretrained=YES and not YES)
m = timm.create_model('x', pretrained=bool(None))
if __name__ == '__main__':
    m = timm.create_model('x', pretrained=True)
def popped(**kw):
    return timm.create_model('x', pretrained=kw.pop('p', True))  # loads
def got(prm):
    return timm.create_model('x', pretrained=prm.get('pretrained', False))
def compared(prm):
    return timm.create_model('x', pretrained=prm['pretrained'] > 0.5)
def compared_default(prm):
    return timm.create_model('x', pretrained=prm.get('p', 1) > 0.5)  # missed
def switched(prm, m):
    if prm['p']:
        m.load_state_dict(torch.load('a'))
def chosen(prm):
    m = resnet18(weights='A' if prm['p'] else None)
def named(name):
    if name == 'resnet18':
        return resnet18(True)  # loads
    elif name == 'resnet50':
        m = resnet50(pretrained=False)
    return m
def both_sides(prm):
    if prm['deep']:
        return resnet50(True)  # missed
    return resnet18(True)  # loads
def early(pretrained=False):
    if not pretrained:
        return Net()
    m = Net()
    m.load_state_dict(torch.load('a.pth'))  # mistaken
    return m

## parameters and their defaults
import torch
from torch.hub import load_state_dict_from_url
from torchvision.models import resnet18, ResNet18_Weights
def told(n, weights='DEFAULT'):
    return resnet18(weights=weights)  # loads
m = told(10)
class NeverBuilt(nn.Module):
    def __init__(self, in_shape, pretrained: bool = True):
        self.m = resnet18(pretrained=pretrained)  # loads
class Body(nn.Module):
    def __init__(self, pretrained=False):
        w = ResNet18_Weights.DEFAULT if pretrained else None
        self.m = resnet18(weights=w)  # missed
class Backbone(nn.Module):
    def __init__(self, pretrained=True):
        self.m = resnet18(pretrained=pretrained)  # mistaken
m = [Body(), Body(True), Backbone(pretrained=False)]
def build(pretrained: bool = False, weights=None):
    m = resnet18(weights=ResNet18_Weights.DEFAULT if pretrained else None)
    if pretrained:
        m.load_state_dict(torch.load('a.pth'))
        fetch(m)
    if weights is not None:
        m.load_state_dict(weights.get_state_dict())
    return m
def fetch(m, url='https://x'):
    m.load_state_dict(load_state_dict_from_url(url))  # mistaken
def given(m, weights):
    if weights is not None:
        m.load_state_dict(weights.get_state_dict())
def twice():
    return resnet18(True)  # loads
def calls_twice(prm):
    if prm['twice']:
        twice()
    return twice()
def starred(**kwargs):
    return resnet18(**kwargs)  # missed
m = starred(pretrained=True)

## attributes, methods, nested functions
import timm, torch
from torchvision.models import resnet18
class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        self.weights = "DEFAULT"
        self.set_up()
        def inner():
            return resnet18(True), 1  # loads
        self.a = inner()
        self.b = (lambda: resnet18(True))()  # loads
        self.c = self.body
        self.d = self.make(True)
        if in_shape is None:
            self.restore()
        if False:
            self.restore()
    def set_up(self):
        self.m = resnet18(weights=self.weights)  # loads
    @property
    def body(self):
        return resnet18(True), 2  # loads
    @staticmethod
    def make(pretrained):
        return resnet18(pretrained)  # missed
    def restore(self, path='a.pth'):
        self.load_state_dict(torch.load(path))  # mistaken
class Part(nn.Module):
    def __init__(self, pretrained=True):
        self.pretrained = pretrained
    def fill(self):
        self.m = timm.create_model('a', self.pretrained)  # loads
parts = [Part(False), Part()]
for part in parts:
    part.fill()

## classes that others fill in
import timm
from torchvision.models import resnet18
class Base(nn.Module):
    PRE = False
    def __init__(self):
        self.m = resnet18(pretrained=self.PRE)  # missed
class Overrides(Base):
    PRE = True
class Above(nn.Module):
    def __init__(self, pretrained):
        self.m = resnet18(pretrained=pretrained)
class Hands(Above):
    def __init__(self):
        super().__init__(pretrained=True)  # loads
OPTIONS, ADDED = dict(pretrained=True), {}
ADDED.update(pretrained=True)
m = timm.create_model('x', **OPTIONS)  # missed
m = timm.create_model('x', **ADDED)  # missed
@dataclass
class Options:
    name: str
    pretrained: bool = True
o, p = Options('x'), Options('x', pretrained=False)
m = timm.create_model(o.name, pretrained=o.pretrained)  # missed
m = timm.create_model(p.name, pretrained=p.pretrained)
"""

CASES = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", FILES, re.MULTILINE))


def find(code: str) -> tuple[Evidence, ...]:
    return find_pretrained(code)


@pytest.mark.parametrize("name", CASES)
def test_the_marked_lines_are_found_and_no_others(name: str) -> None:
    lines = CASES[name].split("\n")
    marked = [line for line in lines if line.endswith(("# loads", "# mistaken"))]
    assert [one.text for one in find(CASES[name])] == [line.strip() for line in marked]


@pytest.mark.parametrize("name", CASES)
def test_code_that_never_runs_does_not_count(name: str) -> None:
    body = textwrap.indent(CASES[name].replace("import *", "import resnet18"), "    ")
    assert find(f"if __name__ == '__main__':\n{body}\n") == ()


def test_text_is_cut_and_lines_are_those_of_the_parser() -> None:
    code = "import timm\r\nx = '\x0c'\r\n   \r\nm = timm.create_model('" + "a" * 300 + "', pretrained=True)\r\n"
    (found,) = find(code)
    assert (found.line, len(found.text)) == (4, 160)
    assert found.text.startswith("m = timm.create_model('aaa")


@pytest.mark.parametrize(
    "code",
    [
        "m = " + "f(pretrained=" * 90 + "1" + ")" * 90,
        "m = x" + ".to(pretrained=1)" * 900,
        "x = " + "[" * 90 + "]" * 90 + "\nm = f(pretrained=x)",
        "def f(x):\n    return g([x])\ndef g(x):\n    return f([x])\nm = h(pretrained=f(1))",
        "".join(f"def f{i}(x):\n    f{i + 1}([x])\n    return f{i + 1}([x, 1])\n" for i in range(40))
        + "m = g(pretrained=f0(1))",
    ],
    ids=["calls", "methods", "lists", "mutual recursion", "many calls"],
)
def test_any_code_is_read_in_bounded_time(code: str) -> None:
    assert not isinstance(code_features(f"import timm\n{code}\n"), str)
