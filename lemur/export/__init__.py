"""Finished folders in the forms of other tools: KernelBench, trainers of language models, evaluations, environments."""

from typing import Literal

#: The forms, as `--format` takes them.
ExportForm = Literal["kernelbench", "prompt-completion", "preference", "eval", "verifiers"]
