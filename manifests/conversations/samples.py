"""How cards of data sets tell what their rows are like: quantiles of a length, and shortened examples."""

from collections.abc import Iterable, Sequence

from lemur_core.files.markdown import block, plural, shown


def quantile(values: Sequence[int], percents: int) -> int:
    """The least of the values that so many per cent of them do not exceed."""
    return sorted(values)[max(0, -(-percents * len(values) // 100) - 1)]


def shown_turns(turns: Iterable[tuple[str, str]], head: int, tail: int, width: int) -> list[str]:
    """Role and text of each turn as Markdown, of long texts their first and last lines, each cut at `width`."""
    return [line for role, text in turns for line in block([f"{role}:", *_shortened(text, head, tail, width)], "text")]


def _shortened(text: str, head: int, tail: int, width: int) -> list[str]:
    lines = [shown(line, width) for line in text.split("\n")]
    left_out = len(lines) - head - tail
    return [*lines[:head], f"… {plural(left_out, 'line')} …", *lines[-tail:]] if left_out > 1 else lines
