"""The factories of a network's file: one a slot, each a call of its filler, and what fillers may be handed."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass

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
