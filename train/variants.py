"""What an ablation leaves out: the recipe's own variants, and those that a user writes down."""

from collections.abc import Sequence

from lemur_core.files.errors import UsageError, UserError
from train.recipe import Recipe, read_changes

FULL = "full"

#: What each variant changes; a change that leaves the recipe as it is makes no variant.
STANDARD: dict[str, dict[str, object]] = {
    "no attention": {"slots__attention": "none"},
    "strided convolution": {"slots__downsample": "strided_conv"},
    "no stochastic depth": {"slots__stochastic_depth": "none"},
    "plain augmentation": {
        "augmentation__randaugment_ops": 0,
        "augmentation__mixup_alpha": 0.0,
        "augmentation__cutmix_alpha": 0.0,
        "augmentation__cutout": 0,
    },
}


def variants(recipe: Recipe, written: Sequence[str] = ()) -> dict[str, Recipe]:
    """Recipes by name: the full one, then the written variants, or the standard ones when none is written.

    Args: written: each `NAME: KEY=VALUE, KEY=VALUE`; keys as in a recipe (`slots.attention`), values as in TOML.
    Raises: UsageError if one cannot be read, changes nothing, makes no valid recipe, or is named like another;
        UserError if there is none.
    """
    changes = [_read(text) for text in written] if written else list(STANDARD.items())
    found = {FULL: recipe}
    folders = {folder_name(FULL): FULL}
    for name, change in changes:
        other = folders.setdefault(folder_name(name), name)
        if other != name or name in found or not folder_name(name):
            said = f"is too like {other!r}" if folder_name(name) else "has no letter or digit"
            raise UsageError(f"variant {name!r}: {said}, and its runs need a folder of their own; give another name")
        changed = recipe.changed(**change)
        if changed != recipe:
            found[name] = changed
        elif written:
            raise UsageError(f"variant {name!r}: changes nothing in this recipe; leave it out")
    if len(found) == 1:
        raise UserError(
            "the recipe has no attention, anti-aliasing, stochastic depth or augmentation to leave out; take another"
            " recipe, or say what to change: --variant 'NAME: KEY=VALUE'"
        )
    return found


def folder_name(name: str) -> str:
    """What the folders of a variant's runs begin with."""
    return "".join(char if char.isalnum() else "-" for char in name.lower()).strip("-")


def _read(text: str) -> tuple[str, dict[str, object]]:
    name, colon, rest = text.partition(":")
    if not colon or not name.strip() or name.strip() == FULL:
        raise UsageError(
            f"variant {text!r}: write NAME: KEY=VALUE, for example 'no attention: slots.attention=\"none\"'"
        )
    return name.strip(), read_changes(rest)
