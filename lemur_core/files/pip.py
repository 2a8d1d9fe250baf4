"""Released packages, downloaded by pip with the user's own index settings; none of their code is run."""

import contextlib
import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version

from lemur_core.files.errors import RetryableError, UsageError, UserError
from lemur_core.files.pip_guarded import EXIT_ARCHIVE

_SCRIPT = Path(__file__).with_name("pip_guarded.py")
_UNREACHABLE = re.compile(
    r"Retrying|Max retries|Connection|ProxyError|[Tt]imed out|SSLError|IncompleteRead|HTTP error 5"
)
_INVALID = "has invalid metadata"
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_UNDATED = "does not provide upload-time"
_LOCAL = re.compile(r"^Processing ", re.MULTILINE)
_DATED_PIP = "26.0"


class AbsentError(UserError):
    """The index has no release or file that can be used here; retrying soon would not help.

    Attributes: versions: the releases that do exist, if none of them matches the request.
    """

    def __init__(self, message: str, versions: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.versions = versions


class RejectedError(AbsentError):
    """The index has the release, but pip rejects its metadata, and there is no sdist of it."""


class UndatedError(AbsentError):
    """Nobody knows whether the release existed on the day that was asked for."""

    def __init__(self) -> None:
        super().__init__("date unknown, because its index states no upload times")


class NoWheelError(AbsentError):
    """The index has no release with a wheel that can be used here; it may have an sdist."""


def download(
    name: str,
    specifier: str,
    folder: Path,
    *,
    sdists: bool | Literal["only"] = False,
    max_bytes: int = 0,
    max_seconds: float | None = None,
    retries: int | None = None,
    day: str | None = None,
) -> Path:
    """Download the archive of the release that pip chooses for a requirement.

    Args:
        specifier: a version specifier of PEP 440, such as `==1.0`; "" is the newest release.
        folder: empty; the archive and scratch files are put into it.
        sdists: download an sdist if there is no wheel for this interpreter, or in any case. It is never built.
        max_bytes: size limit of the archive; 0 for none.
        max_seconds: for all of pip's work; None for no limit.
        retries: connection retries; None for the user's setting.
        day: the last one on which the release may have been uploaded, as `check_day` accepts it; None for today.
    Returns: the path of the archive.
    Raises: AbsentError if there is no such package, version or wheel, or it is too large; UndatedError if its upload
        time is needed and unknown; RetryableError if the index cannot be reached or takes too long; UserError with
        pip's message otherwise. No message repeats the name.
    """
    archives, result = folder / "archives", folder / "result"
    options = {True: [], False: ["--only-binary", ":all:"], "only": ["--no-binary", ":all:"]}[sdists]
    options += [] if retries is None else ["--retries", str(retries)]
    if day is not None:
        end = date.fromisoformat(day) + timedelta(days=1)
        options += ["--verbose", "--uploaded-prior-to", f"{end}T00:00:00Z"]  # verbose undoes quiet
    try:
        done = _download_to(folder, f"{name}-", max_bytes, max_seconds, [*options, name + specifier])
    except TimeoutError as error:
        raise RetryableError(f"pip took more than {max_seconds:.0f} s to fetch it; run again") from error
    # Files of a local folder have no upload time, and pip takes them whatever the day.
    if day is not None and (_UNDATED in done.stderr or _LOCAL.search(done.stdout)):
        raise UndatedError
    # pip would build the sdist to read its metadata; the guard ends it there, with the archive on disk.
    if sdists and done.returncode == EXIT_ARCHIVE and result.is_file():
        return Path(result.read_text(encoding="utf-8"))
    if _INVALID in done.stderr and sdists is True:  # pip rejects it in a wheel; that of an sdist is not read
        more: Any = {"max_bytes": max_bytes, "max_seconds": max_seconds, "retries": retries, "day": day}
        with contextlib.suppress(AbsentError):
            return download(name, specifier, folder, sdists="only", **more)
    fetched = sorted(archives.iterdir())
    if done.returncode != 0 or not fetched:
        raise _explain(done.stderr, sdists, max_bytes)
    return fetched[0]


@cache  # reading a package's metadata takes milliseconds, and a folder is written with a dozen of them, twice
def find_version(name: str) -> str:
    """Return the version of an installed distribution, or `not installed`."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def check_day(day: str) -> None:
    """Raises: UsageError if it is not a past day, such as `2021-03-01`, or pip cannot take the releases of one."""
    try:
        past = date.fromisoformat(day).isoformat() == day < datetime.now(UTC).date().isoformat()
    except ValueError:
        past = False
    if not past:
        raise UsageError(f"--as-of: {day!r} is not a past day; write YYYY-MM-DD, for example 2021-03-01")
    pip = next(iter(importlib.metadata.distributions(name="pip")), None)
    if pip is None or Version(pip.version) < Version(_DATED_PIP):
        found = "none" if pip is None else pip.version
        advice = "python -m pip install -U pip, or uv pip install -U pip"
        raise UsageError(f"--as-of: needs pip {_DATED_PIP} or later, and there is {found} here; {advice}")


def _download_to(
    folder: Path, stem: str, max_bytes: int, max_seconds: float | None, arguments: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    archives, scratch = folder / "archives", folder / "scratch"
    for subfolder in (archives, scratch):
        subfolder.mkdir(exist_ok=True)
    guard = [stem, str(folder / "result"), str(max_bytes), "download", "--dest", str(archives)]
    options = ["--quiet", "--no-deps", "--no-cache-dir", "--no-input", "--progress-bar", "off"]
    return _run_pip([*guard, *options, "--disable-pip-version-check", *arguments], scratch, max_seconds)


def latest_version(name: str, scratch: Path) -> str | None:
    """Return the newest release that pip would choose; None if it is unknown.

    Args: name: the name of a package. scratch: an existing folder that pip may fill.
    Returns: such as `1.0`; None also if the index cannot be reached.
    """
    done = _run_pip(["-", "", "0", "index", "versions", "--disable-pip-version-check", name], scratch)
    match = re.match(r"\S+ \(([^)]+)\)", done.stdout)
    return match[1] if done.returncode == 0 and match else None


def _run_pip(
    arguments: Sequence[str], scratch: Path, max_seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run pip, guarded, in a folder that it may fill. Raises: TimeoutError."""
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONIOENCODING": "utf-8"}
    # Nothing is installed, so a ban on installing outside of an environment must not apply.
    environment.pop("PIP_REQUIRE_VIRTUALENV", None)
    command = [sys.executable, "-P", str(_SCRIPT), *arguments]
    texts: Any = {"capture_output": True, "encoding": "utf-8", "errors": "replace", "stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(command, cwd=scratch, env=environment, timeout=max_seconds, check=False, **texts)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    if done.returncode < 0:
        raise UserError("pip was ended from outside; run again")
    return done


def _explain(stderr: str, sdists: bool | Literal["only"], max_bytes: int) -> UserError:
    match = _VERSIONS.search(stderr)
    versions = () if match is None or match[1] == "none" else tuple(match[1].split(", "))
    if "File too large" in stderr:
        return AbsentError(f"its archive has more than {max_bytes >> 20} MiB, the limit")
    if _INVALID in stderr and sdists is True:  # else there may be an sdist, which was not wanted
        return RejectedError(
            "pip rejects the metadata of this release, and there is no sdist of it; take another version"
        )
    if not versions and _UNREACHABLE.search(stderr):
        return RetryableError("the package index cannot be reached; check the network, run again")
    if match is not None or "No matching distribution" in stderr:
        if sdists:
            return AbsentError("there is no such release for this Python and platform", versions)
        return NoWheelError("there is no wheel of it for this Python and platform", versions)
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR")] or stderr.splitlines()[-1:]
    detail = errors[-1].removeprefix("ERROR:").strip() if errors else "no error message"
    return UserError(f"pip could not fetch it: {detail}; `pip download` may tell more")
