"""The options of an extraction."""

from dataclasses import dataclass
from typing import Annotated

from extract.resolve import Policy
from extract.resolve.distributions import read_confirmed
from lemur_core.files.pip import check_day
from manifests.options import MAX_TOKENS, Level, Option, check_options

Names = tuple[str, ...]

SCOPE = "Scope (nothing is indexed again)"
_CHAT = "Conversations to fine-tune on"


@dataclass(frozen=True, slots=True)
class ExtractOptions:
    """Choose which classes become blocks, and how far each of them is validated.

    Args:
        paths: take only classes in these files or folders of their source; patterns are allowed.
        symbols: take only classes whose bare or qualified name matches one of these patterns.
        limit: take at most this many classes.
        start_from: leave out the classes before the one with this name.
        distributions: for imports that no metadata maps to a distribution, their distribution, as `hydra=hydra-core`.
        index: parse the files that the index lacks (`missing`), all files (`force`) or none (`skip`).
        level: validate blocks up to this level.
        as_of: take what blocks import, besides torch, torchvision and numpy, in the versions of a day, as `2021-03-01`,
            where these have wheels for this Python, else in today's; `report.md` lists which.
        retry_failed: run the blocks again that failed in an earlier run.
        fidelity: compare the blocks that run with the original classes, from an installed copy of their package.
        seed: the seed for drawing the held-out specs.
        chat: write conversations for fine-tuning: code to facts, and facts to code.
        chat_max_tokens: leave out longer conversations.
        unsafe_no_sandbox: run foreign code without the sandbox; only for code that you trust.

    Raises:
        UsageError: if the command would refuse a value, a distribution is not of the form IMPORT=NAME, or `as_of` is
            not a past day or needs a newer pip.

    Example:
        ```python
        from extract import ExtractOptions

        options = ExtractOptions(symbols=("*Excitation",), level="forward")
        ```
    """

    paths: Annotated[
        Names,
        Option("Only classes in these files or folders (repeatable).", flag="--path", metavar="GLOB", panel=SCOPE),
    ] = ()
    symbols: Annotated[
        Names,
        Option("Only matching names: '*Attention' (repeatable).", flag="--symbol", metavar="PATTERN", panel=SCOPE),
    ] = ()
    limit: Annotated[int | None, Option("At most N.", metavar="N", least=1, panel=SCOPE)] = None
    start_from: Annotated[str | None, Option("Leave out the classes before NAME.", metavar="NAME", panel=SCOPE)] = None
    distributions: Annotated[
        Names,
        Option(
            "The distribution of an import that no metadata states (repeatable).",
            flag="--distribution",
            metavar="IMPORT=NAME",
        ),
    ] = ()
    index: Annotated[Policy, Option("Parse the missing files, all files, or none.")] = "missing"
    level: Annotated[Level, Option("The level to validate blocks to.")] = "backward"
    as_of: Annotated[
        str | None,
        Option("Packages that blocks import: the versions of that day, where they can be used.", metavar="YYYY-MM-DD"),
    ] = None
    retry_failed: Annotated[bool, Option("Run again the blocks that failed before.")] = False
    fidelity: Annotated[bool, Option("Compare the blocks that run with the originals, installed separately.")] = False
    seed: Annotated[int, Option("The seed of the held-out specs.", least=0)] = 42
    chat: Annotated[bool, Option("Make conversations: code to facts, and facts to code.", panel=_CHAT)] = False
    chat_max_tokens: Annotated[int, Option("Drop those with more tokens.", metavar="N", least=1, panel=_CHAT)] = (
        MAX_TOKENS
    )
    unsafe_no_sandbox: Annotated[bool, Option("Run foreign code without the sandbox. Only for code you trust.")] = False

    def __post_init__(self) -> None:
        check_options(self)
        read_confirmed(self.distributions)
        if self.as_of is not None:
            check_day(self.as_of)
