"""Models of `transformers` on this machine: by a folder, or by a name on the Hub. Their own code is never run."""

import hashlib
import os
from pathlib import Path
from typing import Any

from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError


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


def load_model(transformers: Any, name: str, option: str, or_else: str = "") -> tuple[Any, Any]:
    """Return the tokenizer and the model, in eval mode. Weights must be safetensors.

    Args: option, or_else: the option that names the model, and the end of the advice.
    Raises: UserError if it cannot be loaded.
    """
    from safetensors import SafetensorError

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        model = transformers.AutoModelForCausalLM.from_pretrained(name, trust_remote_code=False, use_safetensors=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = f"pass a folder or a name on the Hub{or_else}"
        raise UserError(f"{option} {name}: cannot be loaded: {reason}; {advice}") from error
    return tokenizer, model.eval()


def model_name(name: str) -> str:
    """Return the name of a model: its folder's, or that on the Hub."""
    folder = Path(name)
    return folder.resolve().name if folder.is_dir() else name


def digest_folder(folder: Path, *suffixes: str) -> str:
    """Return SHA-256 over the names and contents of the files with these suffixes, sorted by name."""
    files = sorted(path for path in folder.iterdir() if path.suffix in suffixes)
    return hashlib.sha256("".join(f"{path.name} {sha256_file(path)}\n" for path in files).encode()).hexdigest()
