"""Trained weights cannot be had in the sandbox, and are not what is checked: loading them leaves a module as it is.

Every way in which torch and torchvision fetch a state gives an empty one, and a module that is given an empty state
keeps the values that it was made with. The architecture stays the one that goes with the weights, which it would not
if `weights=` were dropped: builders derive the number of classes and auxiliary heads from them.

For the sandbox alone: it changes torch for the rest of the process.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
import torch.utils.model_zoo
import torchvision
from torch.nn.modules.module import _IncompatibleKeys


def stub_weights() -> None:
    """Make the loading of trained weights do nothing."""
    torch.hub.load_state_dict_from_url = _no_state
    torch.utils.model_zoo.load_url = _no_state  # type: ignore[attr-defined]
    torchvision._internally_replaced_utils.load_state_dict_from_url = _no_state
    torchvision.models._api.load_state_dict_from_url = _no_state
    torchvision.models._api.WeightsEnum.get_state_dict = _no_state
    load_state_dict = torch.nn.Module.load_state_dict

    def load_what_there_is(
        self: torch.nn.Module, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> _IncompatibleKeys:
        return load_state_dict(self, state_dict, *args, **kwargs) if state_dict else _IncompatibleKeys([], [])

    torch.nn.Module.load_state_dict = load_what_there_is  # type: ignore[method-assign]


def _no_state(*_args: object, **_kwargs: object) -> "OrderedDict[str, torch.Tensor]":
    return OrderedDict()
