"""Everything that curation knows about one code, worked out from that code alone: the unit that is cached."""

import ast
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from curate.pretrained import Evidence, find_pretrained
from lemur_core.similarity.fingerprint import fingerprint
from lemur_core.similarity.minhash import signature
from lemur_core.similarity.outline import outline_tree
from lemur_core.similarity.tokens import Detail, literal_digest, region_tokens, shingle_hashes

#: First match wins: the more specific a design, the earlier it stands.
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (family, re.compile(pattern, re.IGNORECASE | re.MULTILINE))
    for family, pattern in (
        ("fractal", r"fractal"),
        ("diffusion", r"diffusion|ddpm|noise_?sched|timestep_?embed"),
        ("gan", r"discriminator|generator"),
        ("vae", r"reparameteri[sz]e|\bvae|autoencoder"),
        ("moe", r"mixture_?of_?experts|\bmoe|gating_?network"),
        ("detection", r"anchor_?generator|roi_?(?:pool|align)|ssd(?:head|lite)?$|retinanet|faster_?rcnn|fcos"),
        ("segmentation", r"unet|deeplab|segformer|fcn_?head|aspp"),
        ("transformer", r"transformer|multi_?head|self_?attention|\bvit|swin|window_?attention"),
        ("recurrent", r"^(?:lstm|gru|rnn)(?:cell)?$"),
        ("mobile", r"mobilenet|inverted_?residual|depth_?wise|mbconv|shufflenet|efficientnet|mnasnet"),
        ("densenet", r"dense_?(?:net|block|layer)"),
        ("inception", r"inception|googlenet"),
        ("resnet", r"res_?net|residual|bottleneck|basic_?block|res_?block|shortcut|downsample"),
        ("squeezenet", r"^fire$|fire_?module|squeezenet"),
        ("vgg", r"vgg"),
        ("alexnet", r"alexnet"),
        ("convolutional", r"^conv\d?d$"),
        ("perceptron", r"^linear$"),
    )
)


def family_of(names: Iterable[str]) -> str:
    """The family for a set of identifiers: the first rule that any of them meets, else `other`."""
    text = "\n".join(sorted(names))
    for family, pattern in _RULES:
        if pattern.search(text):
            return family
    return "other"


#: Part of the cache's name; raised whenever a definition below changes.
FEATURES_VERSION = 4

#: A network's code is tens of kilobytes at most; what is a hundred times larger is data, and is not parsed.
MAX_CODE_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Features:
    """The features of one valid code. Digests have 16 bytes."""

    tree: bytes  # equal for codes that differ in comments, docstrings and layout only
    literal: bytes  # equal for model regions with the same tokens, names and numbers included
    shingle_set: bytes  # equal for equal shingle sets
    shingles: npt.NDArray[np.uint64]  # sorted distinct hashes, never empty
    signature: npt.NDArray[np.uint32]  # MinHash, shape (256,)
    fingerprint: bytes
    elements: npt.NDArray[np.uint64]  # of the fingerprint, sorted distinct hashes, may be empty
    family: str
    pretrained: tuple[Evidence, ...]
    lines: int


def code_features(code: str, detail: Detail = "abstract") -> Features | str:
    """The features of a code, or the reason (a short text) why it has none.

    Any text may come: what Python cannot parse, what is too large or too deeply nested gets a reason, never an error.
    """
    tree = _parse(code)
    if isinstance(tree, str):
        return tree
    outline = outline_tree(tree)
    tokens, declared = region_tokens(code, outline)
    shingles = shingle_hashes(tokens, declared, detail)
    if not len(shingles):
        return "no code: only comments or docstrings"
    shingle_set = hashlib.blake2b(shingles.tobytes(), digest_size=16).digest()
    structure = fingerprint(outline)
    return Features(
        tree=outline.tree_digest,
        literal=literal_digest(tokens),
        shingle_set=shingle_set,
        shingles=shingles,
        signature=_signature_of(shingle_set, shingles),
        fingerprint=structure.digest,
        elements=structure.elements,
        family=family_of(outline.names),
        pretrained=_pretrained(code, tree),
        lines=code.count("\n") + (not code.endswith("\n")),
    )


def _parse(code: str) -> ast.Module | str:
    size = len(code.encode("utf-8", "surrogatepass"))
    if size > MAX_CODE_BYTES:
        return f"too large: {size:,} bytes of code, limit {MAX_CODE_BYTES:,}"
    if not code.strip():
        return "nn_code is empty"
    if "\0" in code:
        return "not Python: contains a null byte"
    try:
        return ast.parse(code)
    except SyntaxError as error:
        return f"not Python: line {error.lineno or 1}: {error.msg}"[:200]
    except ValueError as error:
        return f"not Python: {error}"[:200]
    except (RecursionError, MemoryError):
        return "nested too deeply for Python's parser"


def _pretrained(code: str, tree: ast.Module) -> tuple[Evidence, ...]:
    try:
        return find_pretrained(code, tree)
    except RecursionError:  # values nested a thousand deep, which no network's weights come through
        return ()


def _signature_of(shingle_set: bytes, shingles: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Signature by content: near-copies, which a corpus is full of, share their shingle set with a neighbour."""
    known = _SIGNATURES.get(shingle_set)
    if known is None:
        if len(_SIGNATURES) >= 4096:
            _SIGNATURES.clear()
        known = _SIGNATURES[shingle_set] = signature(shingles)
    return known


_SIGNATURES: dict[bytes, npt.NDArray[np.uint32]] = {}
