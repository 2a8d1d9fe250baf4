"""The settings file of all commands, YAML or TOML: the domains, and how models are built and trained."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from manifests.records import first_fault

GENERAL = "general"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]


class _FrozenSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSettings(_FrozenSettings):
    """The blocks of each domain, and the number of facts."""

    libraries: tuple[Path, ...] = Field(min_length=1, description="extraction folders; relative to the file")
    domains: dict[Name, tuple[str, ...]] = Field(
        min_length=1, description="source names by domain; all others belong to the general set"
    )
    blocks: int = Field(default=120, ge=8, description="maximum per domain")
    marks: int = Field(default=20, ge=2, description="number of marks on the scale of each number")
    share: float = Field(default=0.08, gt=0, le=1, description="maximum share of one answer in a domain's relation")
    held: float = Field(
        default=0.25,
        gt=0,
        lt=1,
        description="share of the blocks that the evaluation asks about; no prototype sees them",
    )


class TuningSettings(_FrozenSettings):
    """A training loop with AdamW: warm-up over 5 % of the steps, then a cosine to zero."""

    steps: int = Field(default=1000, ge=0)
    rank: int = Field(default=0, ge=0, description="of LoRA's matrices, merged at the end; 0 trains all weights")
    batch: int = Field(default=64, ge=1)
    rate: Positive = 1e-3
    decay: float = Field(default=0.01, ge=0)


class Tiny(_FrozenSettings):
    """A randomly initialized model with the Llama architecture."""

    width: int = Field(default=128, ge=8)
    layers: int = Field(default=4, ge=1)
    heads: int = Field(default=4, ge=1)


class BaseSettings(_FrozenSettings):
    """The frozen model: a real one named by `model`, or a tiny one that is first trained on the general set."""

    model: str | None = None
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    shots: int = Field(
        default=0, ge=0, description="general questions with answers before each; then without a chat template"
    )
    tiny: Tiny = Tiny()
    vocabulary: int = Field(default=1536, ge=300)
    training: TuningSettings = TuningSettings(steps=2000)


class ExpertSettings(_FrozenSettings):
    """Stage I. Without `model`, an expert starts from the base."""

    model: str | None = None
    training: TuningSettings = TuningSettings(steps=1500)


class CodebookSettings(_FrozenSettings):
    """Stage II: the vectors that the base gets for each number, by the likelihood that it says it."""

    slots: int = Field(default=1, ge=1, le=16, description="vectors of one number")
    training: TuningSettings = TuningSettings(steps=150, batch=32, rate=0.1, decay=0)


class RouterSettings(_FrozenSettings):
    """Prototypes: cluster centers of questions, each the mean of one random vector per token."""

    prototypes: int = Field(default=128, ge=1)
    margin: float = Field(
        default=0.0, ge=0, le=2, description="route to general if the best two domains differ by less"
    )
    least: float = Field(default=-1.0, ge=-1, le=1, description="route to general if the largest cosine is less")


class MixtureSettings(_FrozenSettings):
    """All settings. `out` is the folder for the stages."""

    seed: int = Field(default=0, ge=0)
    out: Path
    data: DataSettings
    base: BaseSettings = BaseSettings()
    expert: ExpertSettings = ExpertSettings()
    codebook: CodebookSettings = CodebookSettings()
    router: RouterSettings = RouterSettings()


def load_settings(path: Path, **changes: Any) -> MixtureSettings:
    """Load the settings from a file; folders in it are relative to it.

    Args: changes: single values to override, by `part__key` or by top-level key; None keeps the file's value.
    Raises: UserError if it cannot be read, or has an unknown key or a value out of range.
    """
    check_plain(path)
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; pass a settings file, YAML or TOML") from error
    except (ValueError, yaml.YAMLError) as error:  # the former of TOML and UTF-8
        raise UserError(
            f"{path}: cannot be read: {' '.join(str(error).split())}; use YAML, or TOML in a .toml file"
        ) from error
    if not isinstance(data, dict):
        raise UserError(f"{path}: contains no settings; see docs/experts.md for an example")
    for key, value in changes.items():
        part, _, name = key.rpartition("__")
        if value is not None:
            (data.setdefault(part, {}) if part else data)[name] = value
    try:
        settings = MixtureSettings.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{path}: {first_fault(error)}") from error
    root = path.parent
    libraries = tuple(root / folder for folder in settings.data.libraries)
    if GENERAL in settings.data.domains:
        raise UserError(f"{path}: data.domains: {GENERAL} is reserved for blocks without a domain; choose another name")
    further = {
        key: part.model_copy(update={"model": str(root / part.model)})
        for key, part in (("base", settings.base), ("expert", settings.expert))
        if part.model is not None and (root / part.model).is_dir()
    }
    data_settings = settings.data.model_copy(update={"libraries": libraries})
    return settings.model_copy(update={"out": root / settings.out, "data": data_settings, **further})
