"""torch's compiler stays away until something is compiled, and is then what it always is."""

import subprocess
import sys

import pytest

from tests.builders.suites import read_files

TEXTS = read_files(__file__, "compiler.md")


_THEN = {
    "compiled": "assert torch.compile(lambda x: x * 2, backend='eager')(boxes).tolist() == (boxes * 2).tolist()",
    "a submodule": "import torch._dynamo.config as config; assert torch._dynamo.config is config",
    "a module is exempted": "assert 'weight' not in torch.compiler.disable(torch.nn.PReLU()).state_dict()",
    "a class is exempted": "assert torch.compiler.disable(type('Kind', (), {}))() is not None",
    "what torchvision asks": "assert torchvision.ops.poolers.roi_align.__globals__['is_compile_supported']('cpu')",
}


@pytest.mark.slow
@pytest.mark.parametrize("then", _THEN.values(), ids=_THEN)
def test_it_comes_when_it_is_asked_for(then: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", TEXTS["_START"] + then + "\n" + TEXTS["_END"]], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
