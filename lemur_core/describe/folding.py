"""Fold repeats: runs of equal phrases in a sentence, and runs of sentences that differ only in widths.

    conv; relu; conv; relu; conv; relu      becomes      3 times (conv, then relu)

A sentence refers to another by its distance, `[-1]`, so that repeated sentences are equal texts; the distances become
numbers at the end.
"""

import re
from collections.abc import Sequence

from lemur_core.describe.sentences import remove_marks, remove_widths

MAX_SENTENCES = 16
_MAX_PERIOD = 12  # of repeating sentences
_REFERENCE = re.compile(r"\[(-?\d+)\]")


def fold_phrases(phrases: Sequence[str]) -> list[str]:
    """Fold each run of repeated phrases; widths may differ."""
    folded = list(phrases)
    for period in range(2, len(folded) // 2 + 1):
        start = 0
        while start + 2 * period <= len(folded):
            key = [remove_widths(item) for item in folded[start : start + period]]
            times = 1
            while [remove_widths(i) for i in folded[start + times * period : start + (times + 1) * period]] == key:
                times += 1
            once = folded[start : start + period]
            exact = all(folded[start + n * period : start + (n + 1) * period] == once for n in range(times))
            # Two phrases that differ in widths are just as short in full, and clearer.
            if times > 2 or (times > 1 and exact):
                widths = "" if exact else ", of other widths"
                folded[start : start + times * period] = [f"{times} times{widths} ({', then '.join(once)})"]
            start += 1
    return folded


def fold_sentences(texts: list[str]) -> list[tuple[int, str]]:
    """Number the sentences, and fold each run that differs only in widths into one with the range of its numbers."""
    folded: list[tuple[int, str]] = []
    start = 0
    keys = [remove_widths(text) for text in texts]
    while start < len(texts):
        best, times = 0, 1
        for period in range(1, min(_MAX_PERIOD, (len(texts) - start) // 2) + 1):
            count = 1
            while keys[start + count * period : start + (count + 1) * period] == keys[start : start + period]:
                count += 1
            # Prefer the period that covers the most sentences; of several, the shortest.
            if count > 1 and count * period > best * times:
                best, times = period, count
        if times == 1:
            folded.append((start, texts[start]))
            start += 1
            continue
        folded += [(start + step, texts[start + step]) for step in range(best)]
        same = texts[start : start + best * times] == texts[start : start + best] * times
        refers = any(_REFERENCE.search(text) for text in texts[start : start + best])
        shift = f", with numbers {best} further{' each time' if times > 2 else ''}" if refers else ""
        widths = "" if same else ", other widths" if shift else ", with other widths"
        end = start + best * times
        folded.append((start + best, f"{_span(start + best, end)}: as {_span(start, start + best)}{shift}{widths}"))
        start = end
    return folded


def _span(start: int, end: int) -> str:
    if end - start == 1:
        return f"({start + 1})"
    return f"({start + 1}) {'and' if end - start == 2 else 'to'} ({end})"


def number_sentences(sentences: list[tuple[int, str]]) -> list[str]:
    """Prefix each sentence with its number if there are several."""
    # The line that counts the remaining sentences replaces one.
    shown = sentences if len(sentences) <= MAX_SENTENCES else sentences[: MAX_SENTENCES - 1]
    lines = []
    for number, text in shown:
        sentence = _REFERENCE.sub(lambda match, position=number: f"({position + int(match[1]) + 1})", text)  # type: ignore[misc]
        prefix = f"({number + 1}) " if len(sentences) > 1 and not sentence.startswith("(") else ""
        lines.append(prefix + remove_marks(sentence) + ".")
    if len(sentences) > len(shown):
        lines.append(f"And {len(sentences) - len(shown)} further sentences.")
    return lines
