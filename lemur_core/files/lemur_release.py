"""The released `nn-dataset` package as a wheel in the cache: downloaded once, checksum verified, never installed."""

import json
import shutil
import tempfile
from pathlib import Path

from lemur_core.files.atomic import sha256_file, write_text
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.pip import AbsentError, download
from lemur_core.files.progress import note

#: The last release that contains both codes and statistics.
DEFAULT_VERSION = "2.1.0"

_RELEASES = Path(__file__).with_name("lemur_releases.json")


def fetch_release(version: str = DEFAULT_VERSION) -> tuple[Path, str]:
    """Return the wheel of a release that contains network codes, and its SHA-256.

    It is downloaded once with `pip download` (the user's index settings apply). Its checksum is compared with the one
    shipped here or, for a release newer than this tool, with the one recorded at the first download.

    Args: version: such as `2.1.0`.
    Returns: a file in the cache, and 64 hexadecimal digits.
    Raises: UserError if the release does not exist, contains no codes, or its checksum is wrong; RetryableError if it
        cannot be downloaded.
    Source: https://github.com/ABrain-One/nn-dataset
    """
    folder = cache_folder("lemur", version)
    wheels = sorted(folder.glob("*.whl"))
    wheel = wheels[0] if wheels else _download(version, folder)
    return wheel, _check_digest(wheel, version)


def _read_releases() -> dict[str, dict[str, str | int]]:
    loaded: dict[str, dict[str, str | int]] = json.loads(_RELEASES.read_text(encoding="utf-8"))
    return loaded


def list_releases() -> list[str]:
    """List the releases that contain network codes.

    Returns: their versions, in the order of the shipped list; a release newer than this tool is not in it.
    """
    return [version for version, facts in _read_releases().items() if facts["codes"]]


def _check_digest(wheel: Path, version: str) -> str:
    digest = sha256_file(wheel)
    seen = wheel.with_suffix(".sha256")
    expected = _read_releases().get(version, {}).get("sha256") or (
        seen.read_text().strip() if seen.is_file() else digest
    )
    if digest != expected:
        wheel.unlink()
        raise UserError(
            f"{wheel.name}: SHA-256 is {digest[:16]}…, expected {str(expected)[:16]}…; the damaged file was removed "
            "from the cache: run again to download it"
        )
    if not seen.is_file():
        write_text(seen, digest + "\n")
    return digest


def _download(version: str, folder: Path) -> Path:
    facts = _read_releases().get(version)
    if facts is not None and not facts["codes"]:
        raise UserError(
            f"nn-dataset {version} carries no network codes; releases that do: {', '.join(list_releases())}"
        )
    size = f" ({int(facts['bytes']) / 1e6:.0f} MB)" if facts else ""
    note(f"fetching nn-dataset {version}{size} with pip download")
    part = Path(tempfile.mkdtemp(prefix=".download-", dir=folder))
    try:
        wheel = download("nn-dataset", f"=={version}", part)
        target = folder / wheel.name
        wheel.replace(target)
        return target
    except UserError as error:
        if isinstance(error, AbsentError) and error.versions:
            known = ", ".join(list_releases())
            raise UserError(f"nn-dataset {version}: no such release; releases with network codes: {known}") from error
        raise RetryableError(f"nn-dataset {version} could not be fetched with pip: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
