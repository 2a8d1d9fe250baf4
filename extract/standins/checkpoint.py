"""Stand-ins for loading checkpoints: local files of tensors, nothing from the network."""

import torch


def read_checkpoint(filename, map_location=None, logger=None):
    """The contents of a local checkpoint file; only tensors and plain values are read."""
    return torch.load(filename, map_location=map_location or "cpu", weights_only=True)


def read_checkpoint_with_prefix(prefix, filename, map_location=None, logger="current"):
    """The entries of a checkpoint whose names begin with a prefix, without it."""
    state = read_checkpoint(filename, map_location)
    state = state.get("state_dict", state)
    start = prefix if prefix.endswith(".") else prefix + "."
    return {key[len(start) :]: value for key, value in state.items() if key.startswith(start)}


def load_checkpoint(model, filename, map_location=None, strict=False, logger=None, revise_keys=()):
    """Load a local checkpoint file into a model; the checkpoint is returned."""
    checkpoint = read_checkpoint(filename, map_location)
    state = checkpoint.get("state_dict", checkpoint)
    model.load_state_dict(state, strict=strict)
    return checkpoint


def load_state_dict(module, state_dict, strict=False, logger=None):
    """Load tensors into a module by name."""
    module.load_state_dict(state_dict, strict=strict)
