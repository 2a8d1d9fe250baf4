"""Recipes: the blocks of a network and its training, as TOML. Unknown keys are rejected, and every value is checked."""

import difflib
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from lemur_core.files import Json
from lemur_core.files.atomic import PathLike
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.foreign import check_plain, read_python_file
from manifests.records import Ingredient, describe_fault, drop_outcomes
from train.model.contract import check_contract

#: Recipes shipped with the package.
SHIPPED = Path(__file__).parents[1] / "recipes"

Rate = Annotated[float, Field(ge=0, lt=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Part = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]

#: The line of an assembled network's file that states its hyperparameters.
PRM_LINE = re.compile(r"^# Prm: +(\{.*\})$", re.MULTILINE)
_NAME = r"^[A-Za-z][A-Za-z0-9_-]*$"


class _FrozenRecipePart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Slot(_FrozenRecipePart):
    """The filler of a slot: the id of a block or the name of a built-in; arguments if the inferred ones do not fit.

    Arguments are TOML values; strings that start with `$` stand for values that the network passes: `$channels`,
    `$out_channels`, `$rate`, `$norm`, `$activation`, `$norm_activation` (a factory of both in a row).
    """

    use: str = Field(min_length=1)
    arguments: Json = Field(default_factory=dict)
    float32: bool = Field(default=False, description="computed in float32 where the network is in bfloat16")


class Slots(_FrozenRecipePart):
    """The slots of the network; `train.model.slots` has the four for blocks, and the built-in parts of all.

    `none` leaves out attention or stochastic depth.
    """

    stem: Slot = Slot(use="conv3x3")
    residual: Slot = Slot(use="preact_basic")
    attention: Slot = Slot(use="none")
    downsample: Slot = Slot(use="strided_conv")
    norm: Slot = Slot(use="batch_norm")
    activation: Slot = Slot(use="relu")
    stochastic_depth: Slot = Slot(use="none")
    head: Slot = Slot(use="linear")

    @field_validator("*", mode="before")
    @classmethod
    def _expand_short_form(cls, value: object) -> object:
        if not isinstance(value, str | dict | Slot):
            raise ValueError("use a block's id or a built-in's name in quotes, or a table with use = ...")
        return {"use": value} if isinstance(value, str) else value

    @field_validator("residual")
    @classmethod
    def _refuse_float32(cls, residual: Slot) -> Slot:
        if residual.float32:
            raise ValueError("float32 is for the parts of a block, not for the residual block itself")
        return residual


class ModelSettings(_FrozenRecipePart):
    """The shape of the network: stages of residual blocks; between two stages, the feature map is halved."""

    name: str = Field(default="assembled", pattern=_NAME)
    widths: tuple[Annotated[int, Field(ge=1, le=8192)], ...] = (32, 128, 256)
    depths: tuple[Annotated[int, Field(ge=0, le=200)], ...] = (0, 2, 2)
    stochastic_depth_rate: Rate = Field(default=0.1, description="of the last block; grows linearly from 0")
    transition: Literal["pool_conv", "conv_max_pool"] = Field(
        default="pool_conv", description="order between stages; max: of 2 x 2 at stride 1, arXiv:1904.11486, section 3"
    )

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        if len(self.widths) != len(self.depths) or not self.widths:
            raise ValueError(f"widths has {len(self.widths)} stages and depths {len(self.depths)}; they must be equal")
        if sum(self.depths) == 0:
            raise ValueError("depths: all 0; at least one block is needed")
        return self


class Training(_FrozenRecipePart):
    """The optimizer and its schedule. Learning rate and weight decay are passed to torch's optimizer unchanged."""

    epochs: int = Field(default=20, ge=1)
    last_part: Part = Field(default=1.0, description="of the last epoch, to fit a budget")
    batch_size: int = Field(default=128, ge=2)
    optimizer: Literal["sgd", "adamw", "muon"] = Field(
        default="sgd", description="muon: for convolutions between many channels, SGD for all other weights"
    )
    learning_rate: Positive = 0.1
    muon_learning_rate: Positive = Field(default=0.02, description="of what Muon trains")
    muon_weight_decay: NotNegative = Field(default=0.0, description="of what Muon trains, decoupled")
    momentum: Rate = Field(default=0.9, description="of SGD with Nesterov momentum")
    weight_decay: NotNegative = Field(default=5e-4, description="of weights with two or more dimensions")
    schedule: Literal["cosine", "linear"] = "cosine"
    warmup_fraction: Fraction = Field(default=0.1, description="part of all steps in which the rate grows from near 0")
    label_smoothing: Rate = 0.1
    muon_unit: bool = Field(default=False, description="what Muon trains is kept at the norm of an orthogonal matrix")
    bias_rate: Positive = Field(
        default=1.0, description="factor of the rate of weights with one dimension, but AdamW's"
    )
    freeze_norm_weights: bool = Field(default=False, description="norms learn their biases alone")
    dirac: bool = Field(default=False, description="convolutions begin as the identity of as many channels as they can")
    lookahead: bool = Field(default=False, description="every fifth step goes back to a mean that slows to the end")
    whiten_on_plain: bool = Field(default=False, description="a whitening stem is measured on images as they are")
    kept_part: Part = Field(default=1.0, description="of each batch: what a small network in training finds hardest")
    kept_until: Fraction = Field(default=1.0, description="part of all steps with kept_part; the rest are whole")


class Augmentation(_FrozenRecipePart):
    """The augmentation of training images; all of it from torchvision.transforms.v2."""

    crop_padding: int = Field(default=4, ge=0, le=16)
    flip: bool | Literal["alternate"] = Field(default=True, description="by a draw, or each image every other epoch")
    randaugment_ops: int = Field(default=0, ge=0, le=8)
    randaugment_magnitude: int = Field(default=5, ge=0, le=30)
    cutout: int = Field(default=0, ge=0, le=31, description="side of the square that is erased, pixels")
    mixup_alpha: NotNegative = Field(default=0.0, description="of the Beta distribution; 0: off")
    cutmix_alpha: NotNegative = Field(default=0.0, description="of the Beta distribution; 0: off")
    mix_probability: Fraction = Field(default=0.5, description="part of the batches that are mixed, when one is on")
    plain_fraction: Fraction = Field(default=0.0, description="last part of all steps, with crop and flip alone")
    independent: bool = Field(default=False, description="a crop and a square for each image, not for eight at a time")


class Recipe(_FrozenRecipePart):
    """A complete recipe: the network's shape, its slots, the training, and the augmentation of its images.

    Example:
        ```python
        from train import Recipe

        short = Recipe().changed(training__epochs=1, augmentation__flip=False)
        print(short.to_toml())  # all values, including defaults; a file with this text is a recipe
        ```
    """

    model: ModelSettings = ModelSettings()
    slots: Slots = Slots()
    training: Training = Training()
    augmentation: Augmentation = Augmentation()

    def to_json(self) -> str:
        """Return the recipe as JSON with sorted keys."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)

    def to_toml(self) -> str:
        """Return the recipe as TOML; `load_recipe` reads it back as an equal recipe."""
        parts = self.model_dump(mode="json").items()
        return "\n".join(
            f"[{part}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in values.items())
            for part, values in parts
        )

    @property
    def sha256(self) -> str:
        """The SHA-256 of the JSON form, hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def changed(self, **changes: object) -> "Recipe":
        """Return a validated recipe with changed values; keys have two underscores for a dot: `training__epochs=3`.

        Raises: UsageError for an unknown key or a value out of range.
        """
        data = self.model_dump()
        for key, value in changes.items():
            part, _, name = key.partition("__")
            data.setdefault(part, {})[name] = value
        return _validate(data, "changed recipe", UsageError)


@dataclass(frozen=True, slots=True)
class Network:
    """A network that meets LEMUR's contract: its code, its hyperparameters, and the recipe that it is assembled from.

    Example:
        ```python
        from train import Network

        mine = Network("mine", network.code, network.prm)  # or the text of your own file
        print(mine.name, mine.ingredients)  # the blocks of such a network are not known
        ```
    """

    name: str
    code: str
    prm: Mapping[str, object]
    ingredients: tuple[Ingredient, ...] = ()
    recipe: Recipe | None = None

    def training_recipe(self, recipe: Recipe) -> str:
        """Return the recipe as JSON, without model and slots if the network was not assembled from a recipe."""
        data = recipe.model_dump(mode="json") | ({} if self.recipe else {"model": None, "slots": None})
        return json.dumps(data, sort_keys=True)


def find_recipe(name: str) -> Recipe:
    """Find the recipe in a file, or the shipped recipe with this name.

    Args: name: a shipped recipe, or the path of a TOML file; if both exist, the file is used.
    Returns: the recipe, validated; its slots are not filled yet.
    Raises: UsageError if there is no such recipe; UserError if the file cannot be read.

    Example:
        ```python
        from train import find_recipe

        plain = find_recipe("plain")
        print(plain.model.name, plain.model.widths, plain.training.epochs)
        ```
    """
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return load_recipe(path)
    shipped = sorted(file.stem for file in SHIPPED.glob("*.toml"))
    if name in shipped:
        return load_recipe(SHIPPED / f"{name}.toml")
    raise UsageError(f"{name}: no such recipe; shipped are {', '.join(shipped)} (your own file must end in .toml)")


def to_recipe(recipe: Recipe | PathLike) -> Recipe:
    """Return a recipe as it is, or find it by its name or path."""
    return recipe if isinstance(recipe, Recipe) else find_recipe(os.fspath(recipe))


def open_recipe(
    name: str, changes: Sequence[str] | None = None, epochs: int | None = None, *, of_file: bool = False
) -> Recipe:
    """Find a recipe, and apply the changes of a command to it: texts for `read_changes`.

    Args: of_file: whether the network comes from a file, so that model and slots of the recipe have no effect.
    Raises: UsageError or UserError as in `find_recipe` and `read_changes`, and for a change without effect.
    """
    values = {key: value for text in changes or () for key, value in read_changes(text).items()}
    if epochs is not None:
        values["training__epochs"] = epochs
    idle = [key for key in values if of_file and key.startswith(("model__", "slots__"))]
    if idle:
        raise UsageError(f"--set {idle[0].replace('__', '.')}: has no effect: NET.py is the network")
    recipe = find_recipe(name)
    return recipe.changed(**values) if values else recipe


#: Where a recipe has what LEMUR's hyperparameters of these names mean.
_TRAINED_WITH = {"lr": "training__learning_rate", "momentum": "training__momentum", "batch": "training__batch_size"}


def agree_on_training(recipe: Recipe, network: Network, changes: Sequence[str]) -> tuple[Recipe, Network]:
    """Have recipe and network state the same learning rate, momentum and batch size: those of the network.

    Args: changes: those that were applied to the recipe; what they set overrides the network.
    Raises: UsageError for a value that the recipe cannot have.
    """
    fixed = {key for text in changes for key in read_changes(text)}
    stated = {name: key for name, key in _TRAINED_WITH.items() if name in network.prm}
    own = {key: network.prm[name] for name, key in stated.items() if key not in fixed}
    recipe = recipe.changed(**own) if own else recipe
    used = {name: getattr(recipe.training, key.removeprefix("training__")) for name, key in stated.items()}
    return recipe, replace(network, prm={**network.prm, **used})


def load_recipe(path: Path) -> Recipe:
    """Load the recipe in a TOML file; its name defaults to the file's name.

    Raises: UserError if it cannot be read, is not TOML, has an unknown key (the message suggests the nearest one) or a
        value out of range.
    """
    check_plain(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        fault = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"{path}: {fault}; give a recipe (TOML)") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not TOML: {error}") from error
    model = data.setdefault("model", {})
    if isinstance(model, dict) and re.match(_NAME, path.stem):
        model.setdefault("name", path.stem)
    return _validate(data, str(path))


def read_changes(text: str) -> dict[str, object]:
    """Parse changes for `Recipe.changed` from text: `training.epochs=3, slots.attention="none"`, values as in TOML.

    Raises: UsageError if it cannot be read.
    """
    advice = f"{text.strip()!r}: write KEY=VALUE, the values as in TOML, texts in quotes"
    try:
        document = tomllib.loads(f"changes = {{{text.rstrip().removesuffix(',')}}}")  # TOML's inline table
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{advice}: {error}") from error
    table = document.pop("changes")
    if document:
        raise UsageError(f"{advice}, in one line")
    changes: dict[str, object] = {}
    for part, values in table.items():
        if not isinstance(values, dict):
            raise UsageError(f"{part}: not a key of a recipe; keys are PART.NAME, for example training.epochs")
        changes.update({f"{part}__{key}": value for key, value in values.items()})
    return changes


def _toml(value: object) -> str:
    """Format a JSON value as TOML, which differs from JSON only in tables, written with `=`."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _validate(data: Json, where: str, error_type: type[UserError] = UserError) -> Recipe:
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise error_type(f"{where}: " + "; ".join(_describe(fault) for fault in error.errors())) from error


def _describe(error: Any) -> str:
    path = [str(part) for part in error["loc"]]
    name = ".".join(path)
    if error["type"] == "extra_forbidden":
        keys = _keys(path[:-1])
        near = difflib.get_close_matches(path[-1], keys, 1, 0.5)
        return f"no key {name}; " + (f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(keys)}")
    return f"{name}: {describe_fault(error)}" + (
        "" if isinstance(error["input"], dict) else f", not {error['input']!r}"
    )


def _keys(path: list[str]) -> list[str]:
    """Return the keys of the part of a recipe that forbids others."""
    model: Any = Recipe
    for part in path:
        model = model.model_fields[part].annotation
    return list(model.model_fields)


def read_prm(text: str) -> dict[str, object]:
    """Read hyperparameters from JSON text or a JSON file, without the outcomes that LEMUR stores among them.

    Raises: UsageError if it is not a JSON object; UserError if there is no such file.
    """
    advice = "write '{\"lr\": 0.01}'"
    if not text.lstrip().startswith("{"):
        check_plain(Path(text))
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            kind = UserError if Path(text).suffix else UsageError
            raise kind(f"--prm {text}: neither a JSON object nor a file with one; {advice}") from error
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--prm: not JSON: {error}; {advice}") from error
    if not isinstance(values, dict):
        raise UsageError(f"--prm: not a JSON object; {advice}")
    return drop_outcomes(values)


def read_code(path: Path) -> str:
    """Read the text of a network's file. Raises: UserError if it cannot be read."""
    return read_python_file(path, "give a network's file (NET.py)")


def network_in(path: Path, prm: str | None) -> Network:
    """Load the network in a file that meets LEMUR's contract.

    Args: prm: its hyperparameters, as for `read_prm`; by default those stated in an assembled network's file.
    Raises: UserError if it cannot be read, does not meet the contract, or states no hyperparameters and `prm` is None.
    """
    code = read_code(path)
    fault = check_contract(code)
    if fault is not None:
        raise UserError(f"{path}: does not meet LEMUR's contract: {fault}")
    stated = PRM_LINE.search(code)
    text = prm if prm is not None else stated and stated[1]
    if not text:
        raise UserError(f'{path}: pass its hyperparameters, for example --prm \'{{"lr": 0.01, "momentum": 0.9}}\'')
    return Network(path.stem, code, read_prm(text))
