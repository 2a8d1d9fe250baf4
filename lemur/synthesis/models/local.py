"""A model of `transformers` on this machine, queried sequentially. Its own code is never run.

A model with a chat template gets the messages in it; one without continues a file that begins with the request as
comments. Extra: `pip install lemur-curator[synthesis]`.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lemur.synthesis.models.model import Answer, NoAnswer, Request, Sampling, Take, TokenBudget
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError

_WEIGHTS = (".safetensors", ".json", ".model", ".txt", ".jinja")


class LocalModel:
    """A causal language model by its folder or its name on the Hub.

    Raises: UserError if transformers is not installed, or the model cannot be loaded.
    """

    def __init__(self, name: str, *, budget: TokenBudget) -> None:
        try:
            import transformers
            from safetensors import SafetensorError
        except ImportError as error:
            raise UserError(
                f"--model {name}: needs transformers; pip install 'lemur-curator[synthesis]', or pass --base-url"
            ) from error
        transformers.utils.logging.set_verbosity_error()
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                name, trust_remote_code=False, use_safetensors=True
            )
            self._model = model.eval()
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(
                f"--model {name}: cannot be loaded: {reason}; pass a folder or a name on the Hub, or --base-url URL"
            ) from error
        folder = Path(name)
        self.name = model_name(name)
        self.digest = _digest(folder) if folder.is_dir() else getattr(self._model.config, "_commit_hash", None)
        self.identity = f"{self.name}#{self.digest}"
        self._budget = budget

    def ask(self, requests: Sequence[Request], sampling: Sampling, take: Take) -> None:
        """Hand `take` the answer to each request, in their order."""
        for place, request in enumerate(requests):
            spent = self._budget.spent()
            take(place, NoAnswer(spent) if spent else self._answer(request, sampling))

    def _answer(self, request: Request, sampling: Sampling) -> Answer | NoAnswer:
        import torch

        chats = self._tokenizer.chat_template is not None
        ids = self._ids(request, chats=chats)
        room = getattr(self._model.config, "max_position_embeddings", None) or ids.shape[1] + sampling.max_tokens
        new = min(sampling.max_tokens, room - ids.shape[1])
        if new < 1:
            return NoAnswer(f"the prompt of {ids.shape[1]:,} tokens leaves no room in a context of {room:,}")
        drawn: dict[str, Any] = {"do_sample": False}
        if sampling.temperature > 0:
            drawn = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
        torch.manual_seed(request.seed)
        end = self._tokenizer.eos_token_id
        padding = self._tokenizer.pad_token_id if self._tokenizer.pad_token_id is not None else end
        with torch.inference_mode():
            generated = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, pad_token_id=padding, **drawn
            )[0, ids.shape[1] :]
        text = self._tokenizer.decode(generated, skip_special_tokens=True)
        ended = len(generated) < new or (end is not None and int(generated[-1]) == end)
        return Answer(
            text if chats else request.opening + text, ids.shape[1], len(generated), "stop" if ended else "length"
        )

    def _ids(self, request: Request, *, chats: bool) -> Any:
        if chats:
            text = self._tokenizer.apply_chat_template(
                list(request.messages), add_generation_prompt=True, tokenize=False
            )
            return self._tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        return self._tokenizer(request.opening, return_tensors="pt").input_ids


def model_name(name: str) -> str:
    """Return the name of a model: its folder's, or that on the Hub."""
    folder = Path(name)
    return folder.resolve().name if folder.is_dir() else name


def _digest(folder: Path) -> str:
    """Return SHA-256 over the weight files of a model, by name."""
    files = sorted(path for path in folder.iterdir() if path.suffix in _WEIGHTS)
    listing = "".join(f"{path.name} {sha256_file(path)}\n" for path in files)
    return hashlib.sha256(listing.encode()).hexdigest()
