"""LEMUR's contract, read from the code: what meets it, and the reason in one line for each way not to."""

from pathlib import Path

import pytest

from train.model.contract import check_contract, lemur_digest, lemur_name

TINY = (Path(__file__).parents[1] / "fixtures" / "train" / "tiny_net.py").read_text(encoding="utf-8")

INIT = "    def __init__(self, in_shape, out_shape, prm, device):\n        super().__init__()\n"
REST = "    def train_setup(self, prm): ...\n    def learn(self, train_data): ...\n    def forward(self, x): return x\n"
NAMES = "def supported_hyperparameters():\n    return {'lr'}\n"
GOOD = f"from torch import nn\n{NAMES}class Net(nn.Module):\n{INIT}{REST}"


def changed(before: str, after: str) -> str:
    assert before in GOOD
    return GOOD.replace(before, after)


@pytest.mark.parametrize(
    "code",
    [
        TINY,
        GOOD,
        GOOD.replace("\n", "\r\n"),
        changed("return {'lr'}", "return ['lr', 'momentum']"),
        changed("return {'lr'}", "return {'lr': 0.01}"),  # LEMUR goes through the keys
        changed("return {'lr'}", "names = {'lr'}\n    return names"),
        changed(NAMES, "supported_hyperparameters = lambda: {'lr'}\n"),
        changed(NAMES, f"import functools\n@functools.cache\n{NAMES}"),
        changed("    def forward(self, x)", "    @property\n    def forward(self)"),  # a decorator may do anything
        changed("class Net(nn.Module)", "class Base(nn.Module):\n" + REST + "class Net(Base)").replace(
            INIT + REST, INIT
        ),
        changed("in_shape, out_shape, prm, device", "*args"),
        changed("prm, device", "prm, device, width=3, *, depth=2"),
        changed("(self, train_data)", "(self, train_data, rate=0.1)"),
        changed("    def learn(self, train_data)", "    @staticmethod\n    def learn(train_data)"),
        changed("class Net(nn.Module)", "class Net(Wrapper)").replace(REST, ""),  # inherited: taken on trust
        changed("class Net(nn.Module)", "class Net(nn.Sequential)").replace("    def forward(self, x): return x\n", ""),
        "try:\n    import x\nexcept ImportError:\n    pass\n" + GOOD,
    ],
)
def test_what_meets_it(code: str) -> None:
    assert check_contract(code) is None


FAULTS = {
    "syntax": ("import torch\nclass Net(\n", "line 2: not Python: '(' was never closed"),
    "null bytes": ("x = 1\0", "line 1: not Python: source code string cannot contain null bytes"),
    "other name": (changed("class Net(", "class Network("), "line 1: there is no class Net"),
    "nested": ("def f():\n    class Net: ...\n", "line 1: there is no class Net"),
    "alias": (f"{NAMES}Net = make()\n", "line 3: Net is not a class defined here; write class Net(nn.Module)"),
    "imported": (f"from x import Net\n{NAMES}", "line 1: Net is not a class defined here; write class Net(nn.Module)"),
    "no base": (
        changed("class Net(nn.Module)", "class Net"),
        "line 4: class Net is not a torch.nn.Module; write class Net(nn.Module)",
    ),
    "no module": (
        changed("class Net(nn.Module)", "class Base(object): ...\nclass Net(Base)"),
        "line 5: class Net is not a torch.nn.Module; write class Net(nn.Module)",
    ),
    "no init": (changed(INIT, ""), "line 4: class Net has no method __init__(self, in_shape, out_shape, prm, device)"),
    "no forward": (changed("def forward", "def forwards"), "line 4: class Net has no method forward(self, x)"),
    "no learn": (changed("def learn", "def fit"), "line 4: class Net has no method learn(self, train_data)"),
    "few arguments": (
        changed("prm, device)", "prm)"),
        "line 5: Net.__init__ takes 3 arguments; LEMUR calls it as __init__(self, in_shape, out_shape, prm, device)",
    ),
    "many arguments": (
        changed("prm, device)", "prm, device, width)"),
        "line 5: Net.__init__ needs 5 arguments; LEMUR calls it as __init__(self, in_shape, out_shape, prm, device)",
    ),
    "by name": (
        changed("(self, train_data)", "(self, train_data, *, rate)"),
        "line 8: Net.learn needs rate by name; LEMUR calls it as learn(self, train_data)",
    ),
    "no self": (
        changed("def learn(self, train_data)", "def learn()"),
        "line 8: Net.learn takes no self; LEMUR calls it as learn(self, train_data)",
    ),
    "coroutine": (
        changed("def learn", "async def learn"),
        "line 8: Net.learn is a coroutine, which nothing awaits; LEMUR calls it as learn(self, train_data)",
    ),
    "generator": (
        changed("train_data): ...", "train_data):\n        yield train_data"),
        "line 8: Net.learn is a generator, which nothing runs; LEMUR calls it as learn(self, train_data)",
    ),
    "inherited": (
        "from torch import nn\nclass Base(nn.Module):\n    def learn(self): ...\n"
        + GOOD.replace("(nn.Module)", "(Base)").replace("    def learn(self, train_data): ...\n", ""),
        "line 3: Net.learn takes no arguments; LEMUR calls it as learn(self, train_data)",
    ),
    "no names": (
        changed(NAMES, ""),
        "line 1: there is no function supported_hyperparameters() that returns the names of the hyperparameters",
    ),
    "names are a class": (
        changed(NAMES, "class supported_hyperparameters: ...\n"),
        "line 2: supported_hyperparameters is a class, not a function that returns names",
    ),
    "names take arguments": (
        changed("hyperparameters()", "hyperparameters(net)"),
        "line 2: supported_hyperparameters needs 1 argument; LEMUR calls it without any",
    ),
    "names are not returned": (
        changed("return {'lr'}", "{'lr'}"),
        "line 2: supported_hyperparameters returns nothing; return a set of names",
    ),
    "names are a coroutine": (
        changed("def supported", "async def supported"),
        "line 2: supported_hyperparameters is a coroutine, which nothing awaits; LEMUR calls it without any",
    ),
    "names are numbers": (
        changed("{'lr'}", "{1}"),
        "line 3: supported_hyperparameters returns {1}, not a set or list of names",
    ),
    "too deep": ("x = " + "(" * 5000 + ")" * 5000, "line 1: n"),
    "names are a string": (
        changed("{'lr'}", "'lr'"),
        "line 3: supported_hyperparameters returns 'lr', not a set or list of names",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_does_not(name: str) -> None:
    code, reason = FAULTS[name]
    found = check_contract(code)
    assert found == reason or (name == "too deep" and str(found).startswith(reason))


def test_digests_are_those_of_the_package() -> None:
    # The uid of a trial of rl-init-fc39cd17045c03d9657ff97dcd16ed79 in release 2.1.0.
    prm = {"lr": 0.01, "batch": 64, "dropout": 0.2, "momentum": 0.9, "transform": "echo"}
    assert lemur_digest(prm) == "fa5c873e06b6e25aa86d1b6f48125994"
    assert lemur_digest("a b\n\tc\u2003d") == lemur_digest("abcd") == "e2fc714c4727ee9395f324cd2e7f331f"


def test_names() -> None:
    prefixes = {"": "", "rag": "rag-", f"rag-{'0' * 32}": "rag-", "0" * 32: "", "my_net v2/x-": "my-net-v2-x-"}
    for prefix, kept in prefixes.items():
        assert lemur_name("abcd", prefix) == f"{kept}e2fc714c4727ee9395f324cd2e7f331f"
