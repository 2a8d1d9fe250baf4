"""The architecture family of a network, told from the identifiers of its code (never from comments or strings)."""

import re
from collections.abc import Iterable

#: First match wins: the more specific a design, the earlier it stands.
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (family, re.compile(pattern, re.IGNORECASE | re.MULTILINE))
    for family, pattern in (
        ("fractal", r"fractal"),
        ("diffusion", r"diffusion|ddpm|noise_?sched|timestep_?embed"),
        ("gan", r"discriminator|generator"),
        ("vae", r"reparameteri[sz]e|\bvae|autoencoder"),
        ("moe", r"mixture_?of_?experts|\bmoe|gating_?network"),
        ("detection", r"anchor_?generator|roi_?(?:pool|align)|ssd(?:head|lite)?$|retinanet|faster_?rcnn|fcos"),
        ("segmentation", r"unet|deeplab|segformer|fcn_?head|aspp"),
        ("transformer", r"transformer|multi_?head|self_?attention|\bvit|swin|window_?attention"),
        ("recurrent", r"^(?:lstm|gru|rnn)(?:cell)?$"),
        ("mobile", r"mobilenet|inverted_?residual|depth_?wise|mbconv|shufflenet|efficientnet|mnasnet"),
        ("densenet", r"dense_?(?:net|block|layer)"),
        ("inception", r"inception|googlenet"),
        ("resnet", r"res_?net|residual|bottleneck|basic_?block|res_?block|shortcut|downsample"),
        ("squeezenet", r"^fire$|fire_?module|squeezenet"),
        ("vgg", r"vgg"),
        ("alexnet", r"alexnet"),
        ("convolutional", r"^conv\d?d$"),
        ("perceptron", r"^linear$"),
    )
)


def family_of(names: Iterable[str]) -> str:
    """The family for a set of identifiers: the first rule that any of them meets, else `other`."""
    text = "\n".join(sorted(names))
    for family, pattern in _RULES:
        if pattern.search(text):
            return family
    return "other"
