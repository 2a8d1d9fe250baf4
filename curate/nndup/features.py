"""All that nn-dup 2.2.4 derives from one source text: its tokens, its structural fingerprint and its family tag."""

from dataclasses import dataclass

from curate.nndup.outline import Outline, outline
from curate.nndup.text import token_stream

#: Family tags by words found anywhere in the text (any case), the first that fits.
_FAMILY_WORDS = (
    ("fractal", ("fractalblock", "fractalunit", "fractal_fn")),
    ("transformer", ("transformerencoderlayer", "multiheadattention")),
    ("mobile", ("depthwise", "mobilenet")),
    ("resnet", ("resnet", "residual")),
    ("densenet", ("dense",)),
    ("vgg", ("vgg",)),
)
#: Family tags by the beginning of a network's name (case counts). Other names leave it to the text.
_FAMILY_NAMES = (
    ("fractal", ("Fractal",)),
    ("resnet", ("ResNet",)),
    ("vgg", ("VGG",)),
    ("densenet", ("DenseNet",)),
    ("mobile", ("MobileNet",)),
    ("transformer", ("Transformer", "BERT", "GPT")),
    ("generic", ("RAG", "Rag", "rag")),
)


@dataclass(frozen=True, slots=True)
class NnDupFeatures:
    """What nn-dup compares of one code. Depends on the code alone, so it can be computed anywhere and cached."""

    tokens: str  # the token stream joined by blanks; empty when nn-dup gets none
    length: int  # characters of the code
    layer_sequence: tuple[str, ...]
    layer_bag: tuple[tuple[str, int], ...]
    hyperparameters: tuple[tuple[str, str], ...]
    family: str  # as the text says it; see family_of for the part that the name has in it

    @property
    def fingerprint(self) -> tuple[object, ...]:
        """The structural fingerprint: equal for two codes exactly when nn-dup's hash of it is."""
        return self.layer_sequence, self.layer_bag, self.hyperparameters


def nndup_features(code: str) -> NnDupFeatures:
    """The features of one source text. Never raises for a text that can be encoded, parseable or not."""
    shape = outline(code)
    structure = shape or Outline()
    return NnDupFeatures(
        tokens=" ".join(token_stream(code, shape)),
        length=len(code),
        layer_sequence=structure.layer_sequence(),
        layer_bag=structure.layer_bag(),
        hyperparameters=structure.hyperparameters(),
        family=_family_of_text(code),
    )


def family_of(name: str, features: NnDupFeatures) -> str:
    """The family tag of a record: by the network's name where that says it, else by its code."""
    return next((tag for tag, beginnings in _FAMILY_NAMES if name.startswith(beginnings)), features.family)


def _family_of_text(code: str) -> str:
    text = code.lower()
    return next((tag for tag, words in _FAMILY_WORDS if any(word in text for word in words)), "generic")
