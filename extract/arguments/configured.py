"""Add a field to a configuration: one that the code reads but is missing, or is None where it needs a value."""

import ast
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from extract.arguments.name_values import candidates
from extract.arguments.trials import AttemptError, BlockNamespace, attempt

_MAX_VALUES = 3


def add_config_field(
    failure: AttemptError, texts: Mapping[str, str], names: BlockNamespace, words: list[str]
) -> Iterator[tuple[str, str]]:
    """Yield a parameter and its configuration with one more field, set on the object or on one nested in it.

    Args:
        failure: the failure of a construction with these expressions.
        texts: expressions by parameter; only those that call a class named `...Config` are considered.
        names: evaluates the expressions.
        words: the words of the failing lines.
    """
    for parameter, text in texts.items():
        if text.startswith("@"):  # a placeholder
            continue
        call = ast.parse(text, mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id.endswith("Config")):
            continue
        try:
            config = attempt(partial(names.value, text))
        except AttemptError:
            continue
        inner = {field: value for field, value in vars(config).items() if type(value).__name__.endswith("Config")}
        for keyword, owner in {"": config, **inner}.items():
            for field in _missing_fields(failure.cause, owner, words):
                # Settings hold plain values, not layers.
                plain = [value for value in candidates(field) if not value.startswith(("nn.", "F.", "@"))]
                for value in plain[:_MAX_VALUES]:
                    yield parameter, _with_field(text, keyword, field, value)


def _missing_fields(cause: BaseException, owner: Any, words: list[str]) -> list[str]:
    """Return the fields of a configuration that caused a failure."""
    if isinstance(cause, AttributeError) and type(cause.obj) is type(owner):
        return [cause.name or ""]
    unset = [word for word in dict.fromkeys(words) if vars(owner).get(word, 0) is None]
    return unset if "NoneType" in str(cause) else []


def _with_field(text: str, keyword: str, field: str, value: str) -> str:
    """Return the call with one more keyword, or with one more key in the dict passed as `keyword`."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    value_node = ast.parse(value, mode="eval").body
    keywords = {item.arg: item for item in call.keywords}
    if not keyword:
        call.keywords = [item for item in call.keywords if item.arg != field] + [ast.keyword(field, value_node)]
    else:
        entry = keywords.get(keyword)
        if entry is None or not isinstance(entry.value, ast.Dict):
            entry = ast.keyword(keyword, ast.Dict([], []))
            call.keywords = [item for item in call.keywords if item.arg != keyword] + [entry]
        assert isinstance(entry.value, ast.Dict)
        entry.value.keys.append(ast.Constant(field))
        entry.value.values.append(value_node)
    return ast.unparse(call)
