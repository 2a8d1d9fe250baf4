"""What the way is walked with: small on purpose, real all through."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from manifests.corpus import load_corpus

CORPUS = "quick"
RECIPE = "preact_se"
#: Where the recipe's residual block stands, which the corpus leaves out.
_RECIPE_PATHS = ("timm/models/resnetv2.py",)
_RECIPE_SOURCE = "timm"

#: Prefixes of a few dozen networks of LEMUR that build and run fast, and the blocks.
_INCLUDE = ("rl", "ResNet", "AlexNet", "block")
_RECORDS = ("lemur@2.1.0",)

HUB = "hf://datasets/uoft-cs/cifar10"
EPOCHS, IMAGES, HELD_OUT = 2, 5_000, 1_000


@dataclass(frozen=True, slots=True)
class Plan:
    """All choices of one walk.

    Args:
        sources: looked at beside the corpus; whichever of them has a corpus source's name stands in for it.
        paths: of the sources, whose classes become blocks; all when empty.
        records: sources of LEMUR records, curated together with the blocks.
        include: prefixes of the records that are looked at.
        changes: to the recipe, `part__key` to value.
        images: to train on; None for as many as there are, at most IMAGES.
        held_out: training images to validate on, at most.
    """

    corpus: str | None
    sources: tuple[str, ...]
    paths: tuple[str, ...]
    records: tuple[str, ...] = _RECORDS
    include: tuple[str, ...] = _INCLUDE
    chat: bool = True
    recipe: str = RECIPE
    changes: Mapping[str, object] = field(default_factory=lambda: {"training__epochs": EPOCHS})
    data: str = HUB
    images: int | None = None
    held_out: int = HELD_OUT
    seed: int = 0
    jobs: int | None = None
    unsafe: bool = False


def quick_plan(
    *,
    data: str | None = None,
    epochs: int = EPOCHS,
    images: int | None = None,
    seed: int = 0,
    jobs: int | None = None,
    unsafe: bool = False,
) -> Plan:
    """The plan of `lemur run`: corpus `quick` with what the recipe needs, a slice of LEMUR, a short training run."""
    corpus = load_corpus(CORPUS)
    whole = next(source.source for source in corpus.sources if source.name == _RECIPE_SOURCE)
    paths = tuple(path for source in corpus.sources for path in source.paths)
    return Plan(
        corpus=CORPUS,
        sources=(whole,),  # named by itself it has no paths of its own, so that those below are all in scope
        paths=(*paths, *_RECIPE_PATHS),
        changes={"training__epochs": epochs},
        data=data or HUB,
        images=images,
        seed=seed,
        jobs=jobs,
        unsafe=unsafe,
    )
