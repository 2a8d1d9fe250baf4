"""What went wrong on the Hub: whether it may pass, and one line that says what to do. No line contains the token."""

from collections.abc import Iterator

from lemur_core.files.errors import RetryableError, UserError

_MAY_PASS = frozenset({408, 425, 429})
_LOGIN = "run `hf auth login` with a token that may write there"


def status_of(error: BaseException) -> int | None:
    """The status of the answer that an error, or what caused it, is about."""
    for item in _chain(error):
        status = getattr(getattr(item, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return None


def may_pass(error: BaseException) -> bool:
    """Whether the same call may succeed later: the connection failed, or the server says that it is busy or broken."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    status = status_of(error)
    if status is not None:
        return status in _MAY_PASS or status >= 500
    # The bases include that of every transport error, whichever HTTP library this release is built on.
    transport = tuple(kind for kind in HfHubHTTPError.__bases__ if kind is not OSError)
    chain = list(_chain(error))
    if any(isinstance(item, OfflineModeIsEnabled) for item in chain):
        return False
    return any(isinstance(item, (*transport, ConnectionError, TimeoutError)) for item in chain) or (
        "Consistency check failed" in str(error)  # the client's words for a download that came short
    )


def translated(what: str, error: Exception, again: str) -> UserError:
    """An error of the client as one line that says what to do."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, UserError):
        return error
    status = status_of(error)
    if may_pass(error):
        where = "" if status else "the Hub cannot be reached: "
        return RetryableError(f"{what}: {where}{said(error)}; run the same command again: {again}")
    if isinstance(error, RevisionNotFoundError):
        return UserError(f"{what}: no such revision; give a branch, a tag or a commit that is there")
    if isinstance(error, RepositoryNotFoundError):
        return UserError(
            f"{what}: no such repository, or it is private and you may not see it; check the name, or {_LOGIN}"
        )
    if status == 401:
        return UserError(f"{what}: the Hub does not know who you are; {_LOGIN}")
    if status == 403:
        return UserError(f"{what}: no permission to write: {said(error)}; {_LOGIN}")
    if status is not None:
        return UserError(f"{what}: the Hub refuses with status {status}: {said(error)}")
    if isinstance(error, OSError) and error.errno is not None:
        where = f"{error.filename}: " if error.filename else ""
        return UserError(f"{what}: {where}{error.strerror or said(error)}; free space, or choose another place")
    return UserError(f"{what}: {said(error)}")


def said(error: BaseException) -> str:
    """What the server, else the client, says of an error: one line, without the token."""
    from huggingface_hub import get_token

    deepest = list(_chain(error))[-1] if status_of(error) is None else error
    text = next((m for item in _chain(error) if (m := getattr(item, "server_message", None))), None) or str(deepest)
    line = " ".join((text.strip() or type(deepest).__name__).splitlines()[:2])
    token = get_token()
    return line.replace(token, "…") if token else line


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it was raised from."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__
