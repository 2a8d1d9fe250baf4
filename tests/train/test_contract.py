"""LEMUR's contract, read from the code: what meets it, and the reason in one line for each way not to."""

from tests.builders.suites import table
from tests.builders.training import TINY
from train.model.contract import check_contract, lemur_digest, lemur_name

INIT = "    def __init__(self, in_shape, out_shape, prm, device):\n        super().__init__()\n"
REST = "    def train_setup(self, prm): ...\n    def learn(self, train_data): ...\n    def forward(self, x): return x\n"
NAMES = "def supported_hyperparameters():\n    return {'lr'}\n"
GOOD = f"from torch import nn\n{NAMES}class Net(nn.Module):\n{INIT}{REST}"


def changed(before: str, after: str) -> str:
    assert before in GOOD
    return GOOD.replace(before, after)


@table(__file__, "contract.md", "What meets it", globals() | {"TINY": TINY})
def test_what_meets_it(code: str) -> None:
    assert check_contract(code) is None


@table(__file__, "contract.md", "What does not", globals())
def test_what_does_not(code: str, fault: str) -> None:
    assert check_contract(code) == fault


def test_digests_and_names_are_those_of_the_package() -> None:
    # The uid of a trial of rl-init-fc39cd17045c03d9657ff97dcd16ed79 in release 2.1.0.
    prm = {"lr": 0.01, "batch": 64, "dropout": 0.2, "momentum": 0.9, "transform": "echo"}
    assert lemur_digest(prm) == "fa5c873e06b6e25aa86d1b6f48125994"
    assert lemur_digest("a b\n\tc\u2003d") == lemur_digest("abcd") == "e2fc714c4727ee9395f324cd2e7f331f"
    prefixes = {"": "", "rag": "rag-", f"rag-{'0' * 32}": "rag-", "0" * 32: "", "my_net v2/x-": "my-net-v2-x-"}
    for prefix, kept in prefixes.items():
        assert lemur_name("abcd", prefix) == f"{kept}e2fc714c4727ee9395f324cd2e7f331f"
    assert check_contract("x = 1\0") == "line 1: not Python: source code string cannot contain null bytes"
    assert str(check_contract("x = " + "(" * 5000 + ")" * 5000)).startswith("line 1: n")
