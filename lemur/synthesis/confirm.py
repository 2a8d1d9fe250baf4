"""Confirm that a network learns, by data that its process does not have.

Whatever a process reports that runs foreign code, that code can make up. So a network is trained in fresh processes,
each with a seed and images of its own: five random patterns with noise. What comes back are scores of further images,
whose labels only we have: they are drawn from the code and from a key of this cache, without which code that carries
its own text could draw them, too. If training moved the scores toward these labels, rather than toward the same labels
in any other order, the network learned. By chance, that happens in each of the two processes at most 4 times in 120: in
two modes, after few epochs or after many.
"""

import base64
import hashlib
import secrets
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import numpy as np

from lemur.synthesis.folder import PARAMETERS
from lemur.synthesis.learning_guest import CLASSES, IN_SHAPE, BrokenNetwork, LearningTask, ScoreChange
from lemur_core.files.atomic import atomic_file
from lemur_core.files.cache import cache_folder
from lemur_core.sandbox import Limits
from lemur_core.sandbox.cached import CachedSandbox
from lemur_core.sandbox.stage import SandboxStage

#: Up to 200 batches are trained. CPU time and memory are the effective limits: the load of the machine changes nothing.
CONFIRM = SandboxStage[ScoreChange | BrokenNetwork](
    "lemur.synthesis.learning_guest:train_briefly",
    ScoreChange | BrokenNetwork,
    Limits(wall_seconds=3600, cpu_seconds=480, memory_bytes=6 * 2**30),
    retries=False,
)

_RUNS = 2  # processes for each network
_PATTERNS = 5
_IMAGES, _UNSEEN = 8, 4  # of each pattern
_EPOCHS = (5, 40)  # the latter for networks that need more; deep ones with normalization do
_CELLS = 8  # of a pattern, on each side
_NOISE = 0.3


def confirm(box: CachedSandbox, codes: Mapping[int, tuple[str, str]]) -> dict[int, tuple[str, str]]:
    """Return the networks that do not learn, by their number, with the step that they fail and the reason.

    Args: box: knows the guest of `CONFIRM`. codes: the networks, with the class that has to learn.
    Raises: UserError if no sandbox is available.
    """
    refused: dict[int, tuple[str, str]] = {}
    key = _read_key()
    waiting = [(number, run) for number in codes for run in range(_RUNS)]
    for epochs in _EPOCHS:
        drawn = {f"{number} {run}": _draw(key, *codes[number], run, epochs) for number, run in waiting}
        waiting = []
        for reply in CONFIRM.run(box, {name: task for name, (task, _) in drawn.items()}):
            number, run = map(int, reply.key.split(" "))
            if reply.answer is None:
                refused[number] = ("learns", reply.ending())
            elif isinstance(reply.answer, BrokenNetwork):
                refused[number] = (reply.answer.step, reply.answer.error)
            elif not _has_learned(reply.answer, drawn[reply.key][1]):
                waiting.append((number, run))
        waiting = [(number, run) for number, run in waiting if number not in refused]
    unmoved = "its training does not move its scores of images that it has not seen toward their labels"
    return refused | {number: ("learns", unmoved) for number, _ in waiting}


def _read_key() -> bytes:
    """Return the key that no network knows; it is kept, so that the same code is judged the same way again."""
    path = cache_folder("synthesis") / "confirm.key"
    if not path.exists():
        with atomic_file(path) as part:
            part.write_bytes(secrets.token_bytes(32))
    return path.read_bytes()


def _draw(key: bytes, code: str, name: str, run: int, epochs: int) -> tuple[LearningTask, list[int]]:
    """Draw the images for one run. Returns: also the labels of the unseen images."""
    digest = hashlib.blake2b(f"{run} {code}".encode(), key=key, digest_size=32).digest()
    generator = np.random.default_rng(list(digest))
    labels = generator.permutation(CLASSES)[:_PATTERNS]
    cells = generator.standard_normal((_PATTERNS, IN_SHAPE[0], _CELLS, _CELLS))
    cells += generator.standard_normal((_PATTERNS, IN_SHAPE[0], 1, 1))  # a color
    patterns = cells.repeat(IN_SHAPE[1] // _CELLS, axis=2).repeat(IN_SHAPE[2] // _CELLS, axis=3)

    def draw_images(count: int) -> tuple[str, list[int]]:
        order = generator.permutation(np.repeat(np.arange(_PATTERNS), count))
        images = patterns[order] + _NOISE * generator.standard_normal((len(order), *IN_SHAPE))
        pixels = np.clip((images + 3) / 6 * 255, 0, 255).astype(np.uint8)
        return base64.b64encode(pixels.tobytes()).decode(), [int(label) for label in labels[order]]

    images, image_labels = draw_images(_IMAGES)
    unseen, unseen_labels = draw_images(_UNSEEN)
    seed = int.from_bytes(digest[:4], "big")
    task = LearningTask(code, name, PARAMETERS, seed, images, image_labels, unseen, epochs)
    return task, unseen_labels


def _has_learned(change: ScoreChange, labels: list[int]) -> bool:
    """Return whether the scores moved toward the labels, more than toward these labels in any other order."""
    used = sorted(set(labels))
    rows = np.array(labels)
    for reported in (change.train, change.eval):
        if [len(row) for row in reported] != [CLASSES] * len(labels):
            return False
        scores = np.array(reported)
        moved = np.stack([scores[rows == label][:, used].mean(axis=0) for label in used])
        orders: Any = list(permutations(range(len(used))))  # the first one is that of the labels
        toward, *others = moved[range(len(used)), orders].sum(axis=1)
        if toward > max(others):
            return True
    return False
