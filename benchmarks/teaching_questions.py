"""What `benchmarks.teaching` teaches and asks: conversations, without leaks into what is held out."""

import ast
import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.teaching_corpus import Corpus, Text, read_corpus
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note

#: Texts from which is learned, in the order in which they are trained.
SELECTIONS = ("released", "graphs", "nndup", "plain")

_LEAKS = 0.8  # Jaccard
_WORDS = 5  # of a shingle


@dataclass(frozen=True, slots=True)
class Settings:
    """How an arm is learned and judged. `rank`: of LoRA, 0: all weights; `asked`: codes; `judged`: tokens of each."""

    windows: int = 12
    context: int = 768
    batch: int = 1
    rate: float = 1e-3
    rank: int = 16
    asked: int = 24
    judged: int = 512
    held: int = 100
    draw: int = 0


def prepare(folders: Mapping[str, Path], settings: Settings) -> Corpus:
    """The arms without what is near one held out, and the texts to judge. Raises: UserError."""
    corpus = read_corpus(folders, settings.held, settings.draw)
    there = [arm for arm in SELECTIONS if arm in corpus.arms]
    gone = find_lineage(folders["graphs"], {text.id for text in corpus.held})
    distinct = {text.id: text for arm in there for text in corpus.arms[arm] if text.id not in gone}
    leaks = find_leaks(corpus.held, list(distinct.values()))
    note(f"of {len(distinct):,} texts {len(leaks)} leave the arms by a Jaccard that is not curation's")
    arms = {arm: [text for text in corpus.arms[arm] if text.id in distinct.keys() - leaks] for arm in there}
    one = {text.group: text for text in random.Random(settings.draw).sample(corpus.held, len(corpus.held))}
    names = random.Random(settings.draw).sample(sorted(one), len(one))[: settings.asked]
    held = [one[name] for name in names]
    return Corpus(arms, held)


def find_lineage(folder: Path, held: set[str]) -> set[str]:
    """The ids of all codes that a snapshot removed for one held out, or for one removed for it."""
    rows = pq.read_table(folder / "decisions.parquet", columns=["id", "canonical"]).to_pylist()
    above = {row["id"]: row["canonical"] for row in rows}
    found = set(held)
    while new := {id_ for id_, over in above.items() if over in found} - found:
        found |= new
    return found - held


def find_leaks(held: Sequence[Text], texts: Sequence[Text]) -> set[str]:
    """The ids of texts with a Jaccard of at least 0.8 to one held out; by code that shares nothing with curation's."""
    known = [shingles(text.code) for text in held]
    found = set()
    for text in texts:
        mine = shingles(text.code)
        for one in known:
            if min(len(mine), len(one)) >= _LEAKS * max(len(mine), len(one)):
                both = len(mine & one)
                if both >= _LEAKS * (len(mine) + len(one) - both):
                    found.add(text.id)
                    break
    return found


def shingles(code: str) -> frozenset[int]:
    """Runs of five words or signs, without comments and layout."""
    words = re.findall(r"\w+|[^\w\s]", re.sub(r"#.*", "", code))
    return frozenset(hash(tuple(words[at : at + _WORDS])) for at in range(max(1, len(words) - _WORDS + 1)))


def ask(code: str) -> str:
    """The question that a file answers: what it defines, from its syntax alone."""
    tree = ast.parse(code)
    told = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = [_call(part) for part in node.body if isinstance(part, ast.FunctionDef)]
            told.append(f"- class {node.name}: {', '.join(methods)}")
        elif isinstance(node, ast.FunctionDef):
            told.append(f"- function {_call(node)}")
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    layers = dict.fromkeys(
        call.attr for call in calls if isinstance(call, ast.Attribute) and ast.unparse(call.value) in ("nn", "torch.nn")
    )
    defined = "\n".join(told)
    return (
        f"Write a Python file with a PyTorch network. It defines\n{defined}\nLayers of torch.nn: {', '.join(layers)}."
    )


def _call(node: ast.FunctionDef) -> str:
    return f"{node.name}({', '.join(one.arg for one in node.args.args if one.arg != 'self')})"


def tokens_of(tokenizer: Any, code: str) -> tuple[int, list[int]]:
    """How many tokens the question has, and the tokens of it and the answer."""
    turn = [{"role": "user", "content": ask(code)}]
    asked = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    given = tokenizer(asked, add_special_tokens=False)["input_ids"]
    answer = tokenizer(f"{code}{tokenizer.eos_token}\n", add_special_tokens=False)["input_ids"]
    return len(given), [*given, *answer]


def make_windows(texts: Sequence[Text], tokenizer: Any, settings: Settings, seed: int) -> list[list[int]]:
    """Equally many tokens of each arm: each window is the beginning of a conversation, a short one with the next.

    The order follows from seed and code alone: what two arms share comes in the same order in both. Raises: UserError.
    """
    found: list[list[int]] = []
    window: list[int] = []
    for text in sorted(texts, key=lambda text: hashlib.sha256(f"{seed} {text.id} {text.name}".encode()).digest()):
        window += tokens_of(tokenizer, text.code)[1]
        if len(window) >= settings.context:
            found.append(window[: settings.context])
            window = []
        if len(found) == settings.windows:
            return found
    raise UserError(f"--windows {settings.windows}: an arm fills {len(found)}; ask for fewer")
