"""Finished folders in the forms of other tools: KernelBench, and trainers of language models."""

from typing import Literal

#: The forms, as `--format` takes them.
ExportForm = Literal["kernelbench", "prompt-completion"]
