"""One snapshot with conversations of small networks, made once in the real sandbox."""

import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.model.options import CurateOptions
from curate.run.pipeline import curate

Row = dict[str, Any]

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
HYPER = "def supported_hyperparameters():\n    return {'lr', 'momentum'}\n\n\n"
TRAIN = """
    def train_setup(self, prm):
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.parameters(), lr=prm['lr'], momentum=prm['momentum'])

    def learn(self, train_data):
        for inputs, labels in train_data:
            self.optimizer.zero_grad()
            self.criterion(self(inputs), labels).backward()
            self.optimizer.step()
"""
BUILT = "    def __init__(self, in_shape, out_shape, prm, device):\n        super().__init__()\n"

#: All is known by hand: parameters 3*8*9 + 16 + 8*10 + 10 = 322; multiply-adds 2 * (8*32*32*27 + 80) = 442528.
PLAIN = f"""{HEAD}{HYPER}class Net(nn.Module):
{BUILT}        # Größe: 8 Kanäle
        self.conv = nn.Conv2d(in_shape[1], 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(8, out_shape[0])

    def forward(self, x):
        x = self.act(self.bn(self.conv(x)))
        x = F.relu(x) + torch.relu(x)
        x = x.mean(dim=(2, 3))
        return self.head(x)
{TRAIN}"""

BLOCKS = f"""{HEAD}class Squeeze(nn.Module):
    \"\"\"Gates channels. Markdown in it closes nothing: ```python\"\"\"

    def __init__(self, channels):
        super().__init__()
        self.down = nn.Linear(channels, 4)
        self.up = nn.Linear(4, channels)

    def forward(self, x):
        gate = torch.sigmoid(self.up(F.gelu(self.down(x.mean((2, 3))))))
        return x * gate[:, :, None, None]


class Net(nn.Module):
{BUILT}        self.stem = nn.Sequential(nn.Conv2d(in_shape[1], 16, 5, stride=2), nn.MaxPool2d(2), nn.Dropout(0.25))
        self.gate = Squeeze(16)
        self.parts = nn.ModuleList([nn.Conv2d(16, 16, 1, groups=4) for _ in range(2)])
        self.head = nn.Linear(16, out_shape[0])
        self.size = self.stem(torch.zeros(in_shape)).shape[-1]

    def forward(self, x):
        x = self.gate(self.stem(x))
        for part in self.parts:
            x = x + part(x)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
{TRAIN}"""

#: No ingredient, no import that is alone on its line and used, no training.
BARE = """import torch; from torch import nn


class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(in_shape[1], out_shape[0]))

    def forward(self, image):
        pooled = image.amax(3).amax(2)
        return pooled @ self.weight
"""

FAILS = f"""{HEAD}class Net(nn.Module):
{BUILT}        self.wide = nn.Linear(prm['width'], out_shape[0])
        self.rnn = nn.LSTM(4, 4)
        self.other = nn.Embedding(3, 4)

    def forward(self, x):
        y = self.rnn(x)[0]
        y = y.transpose(1, 2)
        return self.wide(y.sum(1))
"""

ELSEWHERE = f"""import no_such_package_anywhere
{HEAD}class Net(nn.Module):
{BUILT}        self.encoder = no_such_package_anywhere.Encoder()
        self.attend = nn.MultiheadAttention(8, 2)

    def forward(self, x):
        x = self.encoder(x)
        x, _ = self.attend(x, x, x)
        return x.log_softmax(-1)
"""

UNKNOWN = f"""{HEAD}class Net(nn.Module):
{BUILT}        self.deconv = nn.ConvTranspose2d(3, 3, 2)
        self.pad = nn.ZeroPad2d(2)

    def forward(self, x):
        x = self.pad(self.deconv(x))
        x = x.clamp(0, 1)
        return x.argmax(1)
"""

LONG = f"""{HEAD}TABLE = [{", ".join(str(number) for number in range(900))}]


class Net(nn.Module):
{BUILT}        self.table = nn.Embedding(len(TABLE), out_shape[0])
        self.mix = nn.Bilinear(3, 3, out_shape[0])

    def forward(self, x):
        colour = x.flatten(2).std(-1)
        mixed = self.mix(colour, colour)
        return mixed + self.table.weight.mean(0)
"""

CAPTIONS = f"""{HEAD}class Net(nn.Module):
{BUILT}        self.see = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 6), nn.SiLU())
        self.say = nn.GRUCell(6, 6)
        self.words = nn.Linear(6, out_shape[0])

    def forward(self, images, captions=None):
        state = self.see(images)
        spoken = []
        for _ in range(3):
            state = self.say(state, state)
            spoken.append(self.words(state))
        return torch.stack(spoken, 1), state
"""

#: Learns with SGD alone; any other optimizer fails in the training step.
STUBBORN = f"""{HEAD}class Net(nn.Module):
{BUILT}        self.lift = nn.PReLU(3)
        self.fold = nn.PixelUnshuffle(16)
        self.norm = nn.LayerNorm(2)
        self.last = nn.LazyLinear(out_shape[0])

    def forward(self, x):
        x = self.fold(self.lift(x))
        return self.last(self.norm(x).flatten(1))
{TRAIN}        assert 'momentum' in self.optimizer.defaults, 'no momentum'
"""

#: Its one activation is never called.
UNUSED = f"""{HEAD}class Net(nn.Module):
{BUILT}        self.spare = nn.GELU()
        self.rows = nn.RNN(32, 5, batch_first=True)
        self.out = nn.Parameter(torch.ones(5, out_shape[0]))

    def forward(self, x):
        states, last = self.rows(x.mean(1))
        return last[0] @ self.out
"""

PRM = {"lr": 0.1, "momentum": 0.9, "transform": "norm_32", "batch": 64}
NETWORKS = {
    "plain": PLAIN,
    "blocks": BLOCKS,
    "bare": BARE,
    "fails": FAILS,
    "elsewhere": ELSEWHERE,
    "unknown": UNKNOWN,
    "long": LONG,
    "captions": CAPTIONS,
    "stubborn": STUBBORN,
    "unused": UNUSED,
}
MAX_TOKENS = 1_500


def chat_rows() -> list[Row]:
    """Three rows of each network: two epochs, and a second benchmark."""
    rows = []
    for place, (name, code) in enumerate(NETWORKS.items()):
        prm = PRM if name != "unknown" else {"lr": 0.1}
        task, dataset = ("img-captioning", "coco") if name == "captions" else ("img-classification", "cifar-10")
        base = {"nn": f"net-{name}", "nn_code": code, "metric": "acc", "duration": 1.0, "prm": json.dumps(prm)}
        base |= {"task": task, "dataset": dataset}
        value = 0.5 + place / 64
        rows += [base | {"epoch": 1, "accuracy": value}, base | {"epoch": 3, "accuracy": value + 1 / 1024}]
        rows.append(base | {"epoch": 1, "accuracy": 0.75, "metric": "iou"})
    return rows


@pytest.fixture(scope="session")
def make_chat(memory_source: Any, warm: Callable[..., None]) -> Callable[..., Path]:
    """`make_chat(out, rows, **options)`: a snapshot with conversations."""

    def make(out: Path, rows: list[Row], **changed: Any) -> Path:
        warm(row["nn_code"] for row in rows)
        options = CurateOptions(**({"chat": True, "chat_max_tokens": MAX_TOKENS} | changed))
        with redirect_stderr(io.StringIO()):  # lines of progress
            curate(memory_source(rows), out, options, jobs=1)
        return out

    return make


@pytest.fixture(scope="session")
def rows() -> list[Row]:
    """What goes in."""
    return chat_rows()


@pytest.fixture(scope="session")
def networks() -> dict[str, str]:
    """The codes by name."""
    return NETWORKS


@pytest.fixture(scope="session")
def snapshot(make_chat: Callable[..., Path], rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The snapshot of all networks; not to be changed."""
    return make_chat(tmp_path_factory.mktemp("chat") / "snapshot", rows)


@pytest.fixture(scope="session")
def read_chat() -> Callable[[Path], dict[tuple[str, str], Row]]:
    """The conversations of a folder by network and kind; their contents also as system, user, assistant."""

    def read(folder: Path) -> dict[tuple[str, str], Row]:
        found = {}
        for path in sorted(folder.glob("data/chat/*.parquet")):
            for row in pq.read_table(path).to_pylist():
                contents = {message["role"]: message["content"] for message in row["messages"]}
                key = row["nn"].removeprefix("net-"), row["task"]
                found[key] = row | contents | {"split": path.name.partition("-")[0]}
        return found

    return read


@pytest.fixture(scope="session")
def chat(snapshot: Path, read_chat: Callable[[Path], dict[tuple[str, str], Row]]) -> dict[tuple[str, str], Row]:
    """The conversations of the snapshot."""
    return read_chat(snapshot)
