"""The text of the network itself: LEMUR's contract around stem, stages and head, and how it trains."""

import textwrap
from collections.abc import Mapping

from train.glue import PREAMBLE, Filled, drops, shared_factories, slot_factories, wrappers
from train.recipe import Recipe

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
