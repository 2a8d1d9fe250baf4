"""The payload of the guest that records calls. Standard library only: our side imports it without torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MOST_CALLS = 3  # distinct, of a class

#: How the arguments of a constructor were found: the source passes them, a model does whose own ones were guessed, or
#: they were guessed themselves.
Way = Literal["recorded", "guessed above", "search"]
RECORDED: Way = "recorded"
GUESSED: Way = "guessed above"
SEARCHED: Way = "search"


@dataclass(frozen=True, slots=True)
class SourceRecording:
    """Classes of a source whose calls are recorded while its own models, examples and scripts run.

    Args:
        folders: for the front of sys.path, with the packages and their dependencies.
        classes: `MODULE:NAME` of each class.
        modules: further modules to import, which mention these classes.
        examples: Python code of the source's documentation, one text an example.
        tests: files of tests, relative to the first folder that has them.
        configurations: files with settings of models, as paths.
        replaced: modules that are nowhere, such as compiled ones.
        last: whether to record what can be imported, whatever is absent.
        digest: of the source: another one asks again.
        pytest: the folder that has it, named by the digest of what it holds, its version too.
    """

    folders: Sequence[str]
    classes: Sequence[str]
    modules: Sequence[str]
    examples: Sequence[str]
    tests: Sequence[str]
    configurations: Sequence[str]
    digest: str
    pytest: str
    replaced: Sequence[str] = ()
    last: bool = False
