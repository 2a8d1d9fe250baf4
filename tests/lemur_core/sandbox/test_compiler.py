"""torch's compiler stays away until something is compiled, and is then what it always is."""

import subprocess
import sys

import pytest

_START = """
import importlib.util
import sys
import weakref
import torch
import lemur_core.sandbox.server.compiler as ours
ours.defer_compiler()
import torchvision
from torchvision import tv_tensors

def away():
    return isinstance(sys.modules["torch._dynamo"], ours._Placeholder) and "sympy" not in sys.modules

def train():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    weight.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return weight.tolist()

@torch.compiler.disable
def told(x):
    return x * 3

def tell(x):
    return told(x + 1) + 1

def inner():
    image = torch.ones(3)
    return weakref.ref(torch._dynamo.disable(fn=lambda: image))

exempt = torch.optim.Optimizer.add_param_group.__wrapped__
images = torch.ones(1, 1, 8, 8)
boxes = torch.tensor([[0.0, 0, 0, 4, 4]])
assert train() == [0.5, 0.5]
assert torchvision.ops.roi_align(images, boxes, 2).tolist() == [[[[1, 1], [1, 1]]]]
assert tv_tensors.wrap(images, like=tv_tensors.Image(images)).shape == images.shape
assert inner()() is None, "it ends when nobody needs it"
assert importlib.util.find_spec("torch._dynamo").origin.endswith("__init__.py")
assert torch._dynamo.disable(recursive=True)(tell) is tell
assert away()
"""

_THEN = {
    "compiled": "assert torch.compile(lambda x: x * 2, backend='eager')(boxes).tolist() == (boxes * 2).tolist()",
    "a submodule": "import torch._dynamo.config as config; assert torch._dynamo.config is config",
    "a module is exempted": "assert 'weight' not in torch.compiler.disable(torch.nn.PReLU()).state_dict()",
    "a class is exempted": "assert torch.compiler.disable(type('Kind', (), {}))() is not None",
    "what torchvision asks": "assert torchvision.ops.poolers.roi_align.__globals__['is_compile_supported']('cpu')",
}

_END = """
import torch._dynamo.utils as utils
assert not away() and type(torch._dynamo) is type(sys)
assert sys.modules["torch._dynamo"] is torch._dynamo and torch._dynamo.utils is utils
assert utils.__spec__.loader is not None and not isinstance(utils.__spec__.loader, ours._Submodules)
first = vars(exempt).pop("__dynamo_disable", None)
assert first is None, "what was exempted without the compiler is asked again"
assert train() == [0.5, 0.5]
assert exempt.__dynamo_disable is not exempt
seen = []
def note(graph, _):
    seen.extend(node.name for node in graph.graph.nodes if node.op == "call_function")
    return graph.forward
assert torch.compile(lambda x: told(x + 1) + 1, backend=note)(boxes).tolist() == ((boxes + 1) * 3 + 1).tolist()
assert seen and "mul" not in seen, seen
ours.defer_compiler()
assert sys.modules["torch._dynamo"] is torch._dynamo, "where it is there, it stays"
"""


@pytest.mark.slow
@pytest.mark.parametrize("then", _THEN.values(), ids=_THEN)
def test_it_comes_when_it_is_asked_for(then: str) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", _START + then + _END], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
