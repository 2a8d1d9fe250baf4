"""Names of repositories, branches and tags, refused here before the Hub is asked for anything."""

import re

from lemur_core.files.errors import UsageError

_COMMIT = re.compile(r"[0-9a-f]{40}")
_NO_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[-/.]|/\.|[/.]$|\.lock(?:/|$)|^@$")


def check_names(repo_id: str, branch: str, tag: str | None) -> None:
    """Nothing, if all three can be names on the Hub.

    Source: https://git-scm.com/docs/git-check-ref-format
    Raises: UsageError if one cannot.
    """
    check_repository(repo_id)
    for option, name in (("--revision", branch), ("--tag", tag)):
        if name is not None and not _may_be_ref(name):
            raise UsageError(
                f"{option} {name!r}: not a name for a branch or tag; use letters, digits, '.', '_' and '-'"
            )
    if tag == branch:
        raise UsageError(f"--tag {tag}: the branch is called so; choose another --tag")


def check_repository(repo_id: str) -> None:
    """Nothing, if a repository may be called so.

    Raises: UsageError if not, or if the owner is not named: the Hub would put the user's own name before it once only.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # listed, but imported late

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UsageError(
            f"{repo_id!r}: not a repository name: {str(error).splitlines()[0]}; give OWNER/NAME"
        ) from error
    if "/" not in repo_id:
        raise UsageError(f"{repo_id!r}: not a repository name: the owner is missing; give OWNER/{repo_id}")


def _may_be_ref(name: str) -> bool:
    return bool(name) and not (_NO_REF.search(name) or _COMMIT.fullmatch(name) or name.startswith("refs/"))
