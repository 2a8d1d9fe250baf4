"""One more field for a configuration: one that is asked for and not there, or None where a value is needed."""

import ast
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from extract.arguments.name_values import candidates
from extract.arguments.trials import AttemptError, Namespace, attempt

_MOST_VALUES = 3


def with_one_more(
    failure: AttemptError, texts: Mapping[str, str], names: Namespace, words: list[str]
) -> Iterator[tuple[str, str]]:
    """Parameters with the configuration that they take given one more field, or one that is inside it.

    Args:
        failure: of a construction with these texts.
        texts: by parameter, expressions; those count that call a configuration's class by its name.
        words: of the lines that failed.
    """
    for parameter, text in texts.items():
        if text.startswith("@"):  # what is worked out later
            continue
        call = ast.parse(text, mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id.endswith("Config")):
            continue
        try:
            made = attempt(partial(names.value, text))
        except AttemptError:
            continue
        inner = {field: value for field, value in vars(made).items() if type(value).__name__.endswith("Config")}
        for place, owner in {"": made, **inner}.items():
            for field in _lacking(failure.cause, owner, words):
                for value in [one for one in candidates(field) if not one.startswith(("nn.", "F.", "@"))][
                    :_MOST_VALUES
                ]:
                    yield parameter, _with_field(text, place, field, value)


def _lacking(cause: BaseException, owner: Any, words: list[str]) -> list[str]:
    """The fields of a configuration that a failure is about."""
    if isinstance(cause, AttributeError) and type(cause.obj) is type(owner):
        return [cause.name or ""]
    unset = [word for word in dict.fromkeys(words) if vars(owner).get(word, 0) is None]
    return unset if "NoneType" in str(cause) else []


def _with_field(text: str, place: str, field: str, value: str) -> str:
    """The call with one more keyword, or with one more key in the dict that a keyword gives."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    fresh = ast.parse(value, mode="eval").body
    keywords = {item.arg: item for item in call.keywords}
    if not place:
        call.keywords = [item for item in call.keywords if item.arg != field] + [ast.keyword(field, fresh)]
    else:
        given = keywords.get(place)
        if given is None or not isinstance(given.value, ast.Dict):
            given = ast.keyword(place, ast.Dict([], []))
            call.keywords = [item for item in call.keywords if item.arg != place] + [given]
        assert isinstance(given.value, ast.Dict)
        given.value.keys.append(ast.Constant(field))
        given.value.values.append(fresh)
    return ast.unparse(call)
