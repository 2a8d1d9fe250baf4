"""What makes a training run this one: with the same, it comes to the same."""

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from lemur_core.files.errors import UserError
from manifests.records import Ingredient
from train.data import Cifar10
from train.recipe import Recipe


class AssembledNetwork(Protocol):
    """What `train.assemble` gives, as far as a run needs it."""

    @property
    def name(self) -> str:
        """What LEMUR would know it as."""
        ...

    @property
    def code(self) -> str:
        """Its file."""
        ...

    @property
    def prm(self) -> dict[str, float]:
        """What it is constructed with."""
        ...

    @property
    def ingredients(self) -> tuple[Ingredient, ...]:
        """The blocks in it."""
        ...


@dataclass(frozen=True, slots=True)
class Network:
    """A network by LEMUR's contract: its file, and what it is constructed with. `assembled`: from a recipe's slots."""

    name: str
    code: str
    prm: Mapping[str, Any]
    ingredients: tuple[Ingredient, ...] = ()
    assembled: bool = False

    @classmethod
    def of(cls, made: AssembledNetwork) -> "Network":
        """The network of an assembled recipe."""
        return cls(made.name, made.code, made.prm, made.ingredients, assembled=True)


def identify(
    network: Network, recipe: Recipe, seed: int, data: Cifar10, held_out: int, images: int, device: str, tested: bool
) -> dict[str, Any]:
    """All that decides what a run comes to, but for the number of threads."""
    text = recipe_text(network, recipe)
    return {
        "code_sha256": hashlib.sha256(network.code.encode()).hexdigest(),
        "prm": canonical_json(dict(network.prm)),
        "recipe_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "seed": seed,
        "data_sha256": data.sha256,
        "held_out": held_out,
        "train_images": images,
        "tested": tested,
        "device": device,
        "torch": torch.__version__,
        "torchvision": importlib.metadata.version("torchvision"),  # importing it takes seconds
    }


def recipe_text(network: Network, recipe: Recipe) -> str:
    """The recipe as JSON; for a network that was not made by it, without model and slots."""
    known = json.loads(recipe.to_json())
    return canonical_json(known if network.assembled else {**known, "model": None, "slots": None})


def count_images(data: Cifar10, held_out: int, images: int | None) -> int:
    """How many images are trained on.

    Raises: UserError if there are not as many.
    """
    there = len(data.train_labels)
    if not 0 <= held_out < there:
        raise UserError(f"held out: {held_out:,} of {there:,} images; hold out at least 0, and fewer than there are")
    if images is not None and not 1 <= images <= there - held_out:
        raise UserError(f"images: {images:,}, but {there - held_out:,} are left to train on; give at most those")
    return there - held_out if images is None else images


def difference(found: object, wanted: Mapping[str, Any]) -> str:
    """The first thing that differs, in words."""
    if not isinstance(found, dict):
        return "it cannot be read"
    words = {"code_sha256": "network", "recipe_sha256": "recipe", "data_sha256": "data", "prm": "hyperparameters"}
    for name, value in wanted.items():
        if found.get(name) != value:
            said = words.get(name, name.replace("_", " "))
            other = "other" if name in ("data_sha256", "prm") else "another"
            return f"{other} {said}" if name in words else f"{said} {found.get(name)}, not {value}"
    return "the same"


def canonical_json(value: object) -> str:
    """JSON with sorted keys."""
    return json.dumps(value, sort_keys=True)
