"""The text of a network's file after its blocks: a factory a slot, LEMUR's contract around stem, stages and head."""

import ast
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from train.recipe import Recipe

LINE = 120

#: What the calls of built-in parts need.
PREAMBLE = "import torch\nimport torch.nn as nn\n"

_CONV = '''\
def make_conv(
    in_channels, out_channels, kernel_size, stride=1, dilation=1, groups=1, bias=False, device=None, dtype=None
):
    """A convolution that keeps height and width at stride 1."""
    padding = dilation * (kernel_size - 1) // 2
    conv = nn.Conv2d(
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, device=device, dtype=dtype
    )
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv
'''

_NORM_ACTIVATION = '''\
def make_norm_activation(channels, device=None, dtype=None):
    """Normalisation and activation in a row, as they stand before a convolution."""
    return nn.Sequential(make_norm(channels, device=device, dtype=dtype), make_activation())
'''

_FLOAT32 = '''\
class InFloat32(nn.Module):
    """Computes a part in float32 where autocast would narrow it, and gives the result in the type that came in."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            return self.part(x.float()).to(x.dtype)
'''

_BRANCH_END = "    # The branch ends here: with zeros in place of this child's output, the block is the identity.\n"


@dataclass(frozen=True, slots=True)
class Filled:
    """One slot as it is filled: target and arguments of the call, in final names, and what was observed of it."""

    target: str
    arguments: str
    branch_end: str = ""
    empty_end: bool = False
    changes_channels: bool = False
    float32: bool = False

    @property
    def names(self) -> set[str]:
        """The names that the arguments use."""
        tree = ast.parse(f"call({self.arguments})")
        return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}

    def call(self, before: str, after: str = "") -> str:
        """The call as a line between two texts, or wrapped with an argument a line where that is too long."""
        indent = " " * (len(before) - len(before.lstrip()))
        if self.float32:
            before, after = f"{before}InFloat32(", f"){after}"
        line = f"{before}{self.target}({self.arguments}){after}\n"
        if len(line) - 1 <= LINE:
            return line
        arguments = "".join(f"{indent}    {argument},\n" for argument in _split(self.arguments))
        return f"{before}{self.target}(\n{arguments}{indent}){after}\n"


def _split(arguments: str) -> list[str]:
    """The texts of the arguments of a call."""
    source = f"call({arguments})"
    call = ast.parse(source, mode="eval").body
    assert isinstance(call, ast.Call)
    found = [(node.col_offset, node.end_col_offset, "") for node in call.args]
    found += [(one.value.col_offset, one.value.end_col_offset, f"{one.arg}=") for one in call.keywords]
    text = source.encode()  # the columns count bytes
    return [name + text[start:end].decode() for start, end, name in found]


def support_text(norm: Filled, activation: Filled) -> str:
    """The factories that fillers may be handed, with the imports that they need."""
    return PREAMBLE + "\n\n" + "\n\n".join(shared_factories(norm, activation))


def shared_factories(norm: Filled, activation: Filled) -> list[str]:
    """Those that fillers may be handed."""
    made = norm.call("    norm = ") + "    return norm.to(device=device, dtype=dtype)\n"
    return [
        f'def make_norm(channels, device=None, dtype=None):\n    """The normalisation."""\n{made}',
        f'def make_activation():\n    """The activation."""\n{activation.call("    return ")}',
        _NORM_ACTIVATION,
        _CONV,
    ]


def slot_factories(filled: Mapping[str, Filled], transition: str) -> list[str]:
    """Those that the network itself calls, one for each slot that is filled; `transition` is the recipe's."""
    found = [_plain("make_stem(in_channels, out_channels)", "From images to maps.", filled["stem"])]
    if "attention" in filled:
        found.append(_plain("make_attention(channels)", "Attention over the output of a branch.", filled["attention"]))
    if "stochastic_depth" in filled:
        about = "Drops the branch of a sample at this rate, in training."
        found.append(_plain("make_stochastic_depth(rate)", about, filled["stochastic_depth"]))
    found += [_residual(filled), *_transition(filled["downsample"], transition)]
    found.append(_plain("make_head(channels, classes)", "From maps to a value for each class.", filled["head"]))
    return found


def wrappers(filled: Mapping[str, Filled]) -> list[str]:
    """What the factories wrap fillers in."""
    return [_FLOAT32] if any(filler.float32 for filler in filled.values()) else []


def drops(filled: Mapping[str, Filled]) -> bool:
    """Whether branches are dropped: by the slot's filler, or by the residual block itself."""
    return "stochastic_depth" in filled or "rate" in filled["residual"].names


def _plain(signature: str, about: str, filler: Filled) -> str:
    return f'def {signature}:\n    """{about}"""\n{filler.call("    return ")}'


def _residual(filled: Mapping[str, Filled]) -> str:
    residual = filled["residual"]
    signature = "make_residual(channels, rate)" if drops(filled) else "make_residual(channels)"
    ends = ["make_attention(channels)"] if "attention" in filled else []
    formula = "attention(branch(x))" if ends else "branch(x)"
    if "stochastic_depth" in filled:
        ends.append("make_stochastic_depth(rate)")
        formula = f"stochastic_depth({formula})"
    about = f"A residual block: x + {formula}."
    if not ends:
        return _plain(signature, about, residual)
    place = f"block.{residual.branch_end}"
    attribute = all(part.isidentifier() for part in residual.branch_end.split("."))
    old = place if attribute else f'block.get_submodule("{residual.branch_end}")'
    inner = ends if residual.empty_end else [old, *ends]
    new = inner[0] if len(inner) == 1 else f"nn.Sequential({', '.join(inner)})"
    attached = f"{place} = {new}" if attribute else f'block.set_submodule("{residual.branch_end}", {new})'
    made = residual.call("    block = ")
    return f'def {signature}:\n    """{about}"""\n{made}{_BRANCH_END}    {attached}\n    return block\n'


def _transition(downsample: Filled, order: str) -> list[str]:
    """What halves the map between two stages, and goes to the next one's channels."""
    head = (
        'def make_transition(channels, out_channels):\n    """To the next stage: half the height and width."""\n'
        "    return nn.Sequential(\n        make_norm_activation(channels),\n"
    )
    conv = "        make_conv(channels, out_channels, 3),\n"
    if downsample.changes_channels:
        return [f"{head}{downsample.call('        ', ',')}    )\n"]
    if order == "pool_conv":
        return [f"{head}{downsample.call('        ', ',')}{conv}    )\n"]
    most = "        nn.MaxPool2d(2, stride=1),\n" if order == "conv_max_pool" else ""
    return [
        _plain("make_downsample(channels)", "Half the height and width.", downsample),
        f"{head}{conv}{most}        make_downsample(out_channels),\n    )\n",
    ]


_WRAP = 118

_NET = '''\
class Net(nn.Module):
    """A residual network with pre-activation, by LEMUR's contract.

{about}
    """

'''

_FORWARD = '''\

def forward(self, x):
    """From images (N, channels, height, width) to a value for each class (N, classes)."""
    return self.head(self.norm_activation(self.stages(self.stem(x))))

'''

_DONE = "(done - WARMUP_FRACTION) / (1 - WARMUP_FRACTION)"


def network_imports(recipe: Recipe) -> list[str]:
    """What `network_text` needs."""
    mixing = ["from torchvision.transforms import v2"] if mixers(recipe) else []
    counting = ["import math"] if "math." in _rate_factor(recipe) else []
    return [*counting, *PREAMBLE.splitlines(), *mixing]


def network_text(recipe: Recipe, filled: Mapping[str, Filled], about: str) -> str:
    """All that stands after the blocks: constants, factories, `supported_hyperparameters`, `Net`."""
    pieces = [
        _constants(recipe),
        *wrappers(filled),
        *shared_factories(filled["norm"], filled["activation"]),
        *slot_factories(filled, recipe.model.transition),
        _supported(recipe, drops(filled)),
        _rate_factor(recipe),
        _net(recipe, filled, about),
    ]
    return "\n\n".join(pieces)


def hyperparameters(recipe: Recipe, dropping: bool) -> dict[str, float]:
    """The values of the recipe under the names that the network supports."""
    values = {"lr": recipe.training.learning_rate, "momentum": recipe.training.momentum}
    return values | ({"stochastic_depth": recipe.model.stochastic_depth_rate} if dropping else {})


def _constants(recipe: Recipe) -> str:
    model, training = recipe.model, recipe.training
    lines = [
        f"WIDTHS = {model.widths!r}  # channels of each stage",
        f"DEPTHS = {model.depths!r}  # residual blocks of each stage",
        f"EPOCHS = {training.epochs}  # unless `prm` holds `epoch`",
        f"WEIGHT_DECAY = {training.weight_decay!r}  # of weights; norms and biases have none",
        f"LABEL_SMOOTHING = {training.label_smoothing!r}",
    ]
    if training.warmup_fraction > 0:
        lines.append(f"WARMUP_FRACTION = {training.warmup_fraction!r}  # of all steps")
    if training.clip_norm:
        lines.append(f"CLIP_NORM = {training.clip_norm!r}  # of the whole gradient")
    return "\n".join(lines) + "\n"


def _supported(recipe: Recipe, dropping: bool) -> str:
    names = ", ".join(f'"{name}"' for name in hyperparameters(recipe, dropping))
    return f'''\
def supported_hyperparameters():
    """The names of the values that `prm` must hold, each in 0..1."""
    return {{{names}}}
'''


def _rate_factor(recipe: Recipe) -> str:
    """The schedule: what the rate is multiplied with, by the part of all steps that is done."""
    training = recipe.training
    done = _DONE if training.warmup_fraction else "done"
    rest = {
        "constant": "1.0",
        "linear": f"1 - {done}",
        "cosine": f"0.5 * (1 + math.cos(math.pi * {done}))",
        "onecycle": f"0.5 * (1 + math.cos(math.pi * {done}))",
    }[training.schedule]
    if training.warmup_fraction == 1:
        rest = "1.0"
    warm = "done / WARMUP_FRACTION"
    if training.schedule == "onecycle":
        warm = "0.04 + 0.48 * (1 - math.cos(math.pi * done / WARMUP_FRACTION))"
    start = f"    if done < WARMUP_FRACTION:\n        return {warm}\n" if training.warmup_fraction else ""
    return f'''\
def rate_factor(done):
    """What the learning rate is multiplied with when this part (0 to 1) of all steps is done."""
{start}    return {rest}
'''


def mixers(recipe: Recipe) -> list[str]:
    """Constructor calls of what mixes the images of a batch."""
    augmentation = recipe.augmentation
    if not augmentation.mix_probability:
        return []
    found = []
    if augmentation.mixup_alpha:
        found.append(f"v2.MixUp(alpha={augmentation.mixup_alpha!r}, num_classes=classes)")
    if augmentation.cutmix_alpha:
        found.append(f"v2.CutMix(alpha={augmentation.cutmix_alpha!r}, num_classes=classes)")
    return found


def _net(recipe: Recipe, filled: Mapping[str, Filled], about: str) -> str:
    methods = _init(recipe, drops(filled)) + _FORWARD + _train_setup(recipe) + "\n" + _learn(recipe)
    wrapped = textwrap.fill(about, _WRAP, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    return _NET.format(about=wrapped) + textwrap.indent(methods, "    ")


def _init(recipe: Recipe, dropping: bool) -> str:
    rates = block = mix = ""
    if dropping:
        rates = (
            "    # Deeper blocks are dropped more often: the rate grows linearly from 0.\n"
            '    rates = iter(torch.linspace(0, prm["stochastic_depth"], sum(DEPTHS)).tolist())\n'
        )
        block = ", next(rates)"
    if found := mixers(recipe):
        inner = found[0]
        if len(found) > 1:
            inner = "v2.RandomChoice([mixup, cutmix])"
            mix = f"    mixup = {found[0]}\n    cutmix = {found[1]}\n"
        probability = recipe.augmentation.mix_probability
        mix += f"    self.mix = {inner if probability == 1 else f'v2.RandomApply([{inner}], p={probability!r})'}\n"
    return f'''\
def __init__(self, in_shape, out_shape, prm, device):
    """As LEMUR calls it: in_shape (batch, channels, height, width), out_shape (classes,)."""
    super().__init__()
    self.device = device
    classes = out_shape[0]
{rates}    layers = []
    for stage, (width, depth) in enumerate(zip(WIDTHS, DEPTHS)):
        if stage > 0:
            layers.append(make_transition(WIDTHS[stage - 1], width))
        layers.extend(make_residual(width{block}) for _ in range(depth))
    self.stem = make_stem(in_shape[1], WIDTHS[0])
    self.stages = nn.Sequential(*layers)
    self.norm_activation = make_norm_activation(WIDTHS[-1])
    self.head = make_head(WIDTHS[-1], classes)
{mix}    self.to(device)
'''


def _train_setup(recipe: Recipe) -> str:
    made = 'torch.optim.SGD(groups, lr=prm["lr"], momentum=prm["momentum"], nesterov=prm["momentum"] > 0)'
    if recipe.training.optimizer == "adamw":
        made = 'torch.optim.AdamW(groups, lr=prm["lr"], betas=(prm["momentum"], 0.999))'
    return f'''\
def train_setup(self, prm):
    """Make what `learn` needs: the loss, the optimiser, and the schedule over all epochs."""
    self.to(self.device, memory_format=torch.channels_last)
    self.criterion = nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)
    weights = [parameter for parameter in self.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in self.parameters() if parameter.dim() <= 1]
    groups = [{{"params": weights, "weight_decay": WEIGHT_DECAY}}, {{"params": others, "weight_decay": 0.0}}]
    self.optimizer = {made}
    self.lr, self.epochs, self.steps = prm["lr"], prm.get("epoch", EPOCHS), 0
    # bfloat16 where the hardware is fast with it; it needs no scaling of the loss.
    if self.device.type == "cuda":
        self.bfloat16 = torch.cuda.is_bf16_supported()
    else:
        self.bfloat16 = self.device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX512"
'''


def _learn(recipe: Recipe) -> str:
    mix = "        images, targets = self.mix(images, targets)\n" if mixers(recipe) else ""
    clip = "        nn.utils.clip_grad_norm_(self.parameters(), CLIP_NORM)\n" if recipe.training.clip_norm else ""
    return f'''\
def learn(self, train_data):
    """Train for one epoch on batches of images (N, channels, height, width) and class numbers (N,)."""
    self.train()
    total = self.epochs * len(train_data)
    for images, targets in train_data:
        images = images.to(self.device, memory_format=torch.channels_last)
        targets = targets.to(self.device)
{mix}        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * rate_factor(min(1.0, self.steps / (total + 1)))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
            logits = self(images)
        loss = self.criterion(logits.float(), targets)
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss is {{loss.item()}} in step {{self.steps}}; lower lr")
        self.optimizer.zero_grad()
        loss.backward()
{clip}        self.optimizer.step()
'''
