"""The file that all commands read: what the domains are, and how models are made and trained. YAML or TOML."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lemur_core.files.errors import UserError
from manifests.records import first_fault

GENERAL = "general"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSettings(_Part):
    """Which blocks are whose, and how many facts are taken."""

    libraries: tuple[Path, ...] = Field(min_length=1, description="extraction folders; relative to the file")
    domains: dict[Name, tuple[str, ...]] = Field(
        min_length=1, description="names of sources; all others are of the general set"
    )
    blocks: int = Field(default=120, ge=8, description="of a domain at most")
    marks: int = Field(default=20, ge=2, description="of the scale of each number")
    share: float = Field(default=0.08, gt=0, le=1, description="of a domain's facts of one relation with one answer")
    held: float = Field(default=0.25, gt=0, lt=1, description="part of the blocks that no projector sees")


class Training(_Part):
    """A loop of AdamW: warm-up over a twentieth of the steps, then a cosine to nothing."""

    steps: int = Field(default=1000, ge=1)
    batch: int = Field(default=64, ge=1)
    rate: Positive = 1e-3
    decay: float = Field(default=0.01, ge=0)


class Tiny(_Part):
    """A model with weights drawn at random, of the architecture of Llama."""

    width: int = Field(default=128, ge=8)
    layers: int = Field(default=4, ge=1)
    heads: int = Field(default=4, ge=1)


class BaseSettings(_Part):
    """The frozen model: a real one by `model`, else a tiny one that is trained on the general set first."""

    model: str | None = None
    tiny: Tiny = Tiny()
    vocabulary: int = Field(default=1536, ge=300)
    training: Training = Training(steps=2000)


class ExpertSettings(_Part):
    """Stage I. Without `model` an expert starts as the base; or, with `tiny`, as one that was drawn at random."""

    model: str | None = None
    tiny: Tiny | None = None
    training: Training = Training(steps=1500)


class ProjectorSettings(_Part):
    """Stage II, and which states of the expert it is given."""

    pool: Literal["question", "answer"] = Field(default="answer", description="mean over these tokens of the expert")
    layers: tuple[int, ...] = Field(default=(-1,), min_length=1, description="of the expert; several are mixed")
    slots: int = Field(default=1, ge=1, le=16)
    width: int = Field(default=256, ge=1)
    gate: bool = False
    training: Training = Training(steps=600)


class RouterSettings(_Part):
    """Prototypes: centres of a frozen encoder's states."""

    prototypes: int = Field(default=32, ge=1)
    encoder: Literal["random", "base"] = Field(
        default="random", description="a vector a token, drawn once; or the base"
    )
    width: int = Field(default=512, ge=1, description="of the random one")
    layer: int = Field(default=-1, description="of the base")
    margin: float = Field(default=0.0, ge=0, le=2, description="nearer to the second domain than this: general")


class Settings(_Part):
    """All of it. `out` is the folder that the stages are written in."""

    seed: int = Field(default=0, ge=0)
    out: Path
    data: DataSettings
    base: BaseSettings = BaseSettings()
    expert: ExpertSettings = ExpertSettings()
    projector: ProjectorSettings = ProjectorSettings()
    router: RouterSettings = RouterSettings()
    tuned: Training = Field(default=Training(steps=2000), description="full tuning of the base, to compare with")


def load_settings(path: Path, **changes: Any) -> Settings:
    """The settings in a file; folders in it are relative to it.

    Args: changes: of single values, by `part__key`, or by key for those of no part; None leaves what stands there.
    Raises: UserError if it cannot be read, or has an unknown key or a value out of range.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text) if path.suffix == ".toml" else _yaml(text)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a file of settings, YAML or TOML") from error
    except ValueError as error:  # of TOML, of YAML, of UTF-8
        raise UserError(
            f"{path}: cannot be read: {' '.join(str(error).split())}; give YAML, or TOML as .toml"
        ) from error
    if not isinstance(data, dict):
        raise UserError(f"{path}: holds no settings; see docs/experts.md for an example")
    for key, value in changes.items():
        part, _, name = key.rpartition("__")
        if value is not None:
            (data.setdefault(part, {}) if part else data)[name] = value
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{path}: {first_fault(error)}") from error
    beside = path.parent
    libraries = tuple(beside / folder for folder in settings.data.libraries)
    if GENERAL in settings.data.domains:
        raise UserError(f"{path}: data.domains: {GENERAL} is the name of what belongs to none; choose another")
    further = {
        key: part.model_copy(update={"model": str(beside / part.model)})
        for key, part in (("base", settings.base), ("expert", settings.expert))
        if part.model is not None and (beside / part.model).is_dir()
    }
    told = settings.data.model_copy(update={"libraries": libraries})
    return settings.model_copy(update={"out": beside / settings.out, "data": told, **further})


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
