"""Blocks in, trained CIFAR-10 models, ablation tables and LEMUR records out."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from train.ablation import ablate
    from train.check import check_nn
    from train.compose.assemble import assemble
    from train.model.recipe import Network, Recipe, find_recipe
    from train.model.recipe import open_recipe as open_recipe
    from train.runs.register import register
    from train.runs.run import Run, train
else:

    def __getattr__(name: str) -> object:
        """Import a public name on first access (PEP 562): a recipe does not need PyTorch."""
        if name in ("Network", "Recipe", "find_recipe", "open_recipe"):
            from train.model import recipe as module
        elif name == "ablate":
            from train import ablation as module
        elif name == "check_nn":
            from train import check as module
        elif name == "assemble":
            from train.compose import assemble as module
        elif name == "register":
            from train.runs import register as module
        elif name in __all__:
            from train.runs import run as module
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(module, name)


__all__ = ["Network", "Recipe", "Run", "ablate", "assemble", "check_nn", "find_recipe", "register", "train"]
