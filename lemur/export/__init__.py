"""Finished folders in the forms of other tools: KernelBench, trainers of language models, evaluation harnesses."""
