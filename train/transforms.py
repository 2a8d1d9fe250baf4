"""LEMUR's image transforms by their names, and modules for its database that do what they do.

`norm` normalises with the mean and deviation of the dataset, `echo` leaves pixels in 0..1, `complex` makes complex
numbers of these; a number is the size that images are resized to; `flip` mirrors half of them. LEMUR does the same to
test images, flips included.

Source: `ab/nn/transform` and `ab/nn/loader/cifar-10.py` of https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import re
from dataclasses import dataclass
from typing import Literal

from lemur_core.files.errors import UserError

#: Mean and standard deviation of CIFAR-10's channels, as LEMUR's loader has them.
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_DEVIATION = (0.2470, 0.2435, 0.2616)

_NAME = re.compile(r"(norm|echo|complex)(?:_([1-9][0-9]{0,3}))?(_flip)?")
_LARGEST = 1024


@dataclass(frozen=True, slots=True)
class Transform:
    """What is done to an image, in this order; None and 0 where nothing is."""

    name: str
    crop: int | None = None  # side of the middle that is cut out, with black around where the image is smaller
    size: int | None = None  # height and width that it is resized to
    pad: int | None = None  # height and width that black fills it up to, right and below
    mirror: float = 0.0  # probability of a horizontal flip
    upend: float = 0.0  # probability of a vertical flip
    values: Literal["norm", "echo", "complex"] = "norm"


_OTHERS = {
    "center_crop": Transform("center_crop", crop=48, size=64),
    "random_horizontal_flip": Transform("random_horizontal_flip", size=64, mirror=0.24),
    "random_vertical_flip": Transform("random_vertical_flip", size=64, upend=0.22),
    "soft_pad": Transform("soft_pad", pad=800, values="echo"),
}


def transform_named(name: object) -> Transform:
    """The transform of a name.

    Raises: UserError if there is none of that name.
    """
    if isinstance(name, str) and name in _OTHERS:
        return _OTHERS[name]
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    if name == "five_crop":
        raise UserError("transform five_crop: makes five images of one, which LEMUR's own trainer cannot take either")
    if found is None or (found[2] and int(found[2]) > _LARGEST):
        known = f"norm, echo or complex, with _SIZE (1 to {_LARGEST}), _flip or both, for example norm_64_flip"
        raise UserError(f"transform {name!r}: is not one of LEMUR's; there are {known}; and {', '.join(_OTHERS)}")
    size = int(found[2]) if found[2] else None
    values: Literal["norm", "echo", "complex"] = found[1]  # type: ignore[assignment]
    return Transform(found[0], size=size, mirror=0.5 if found[3] else 0.0, values=values)


def transform_module(transform: Transform) -> str:
    """A module with `transform(norm)`, as LEMUR calls it: for a database that holds no code of that name yet."""
    steps = []
    if transform.crop:
        steps.append(f"v2.CenterCrop({transform.crop})")
    if transform.size:
        steps.append(f"v2.Resize(({transform.size}, {transform.size}))")
    steps += [f"v2.RandomHorizontalFlip({transform.mirror})"] if transform.mirror else []
    steps += [f"v2.RandomVerticalFlip({transform.upend})"] if transform.upend else []
    steps += ["v2.ToImage()", "v2.ToDtype(torch.float32, scale=True)"]
    if transform.pad:
        grown = f"(0, 0, {transform.pad} - image.shape[-1], {transform.pad} - image.shape[-2])"
        steps.append(f"lambda image: v2.functional.pad(image, {grown})")
    if transform.values == "norm":
        steps.append("v2.Normalize(*norm)")
    if transform.values == "complex":
        steps.append("lambda image: image.to(torch.complex64)")
    lines = "".join(f"        {step},\n" for step in steps)
    return (
        "import torch\nfrom torchvision.transforms import v2\n\n\n"
        f"def transform({'norm' if transform.values == 'norm' else '_'}):\n    return v2.Compose([\n{lines}    ])\n"
    )
