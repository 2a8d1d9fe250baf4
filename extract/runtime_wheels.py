"""One wheel for this interpreter: fetched by pip, unpacked into the cache, never run."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from extract.sources.archive import is_safe
from extract.sources.metadata import Facts, read_facts
from extract.sources.store import read_record, record, workspace
from lemur_core.files.atomic import sha256_file
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.progress import note

#: Bounds on one distribution: the wheel, and what it unpacks to.
MAX_WHEEL_BYTES = 300 << 20
MAX_UNPACKED_BYTES = 600 << 20
_MAX_MEMBERS = 50_000
_TOO_LARGE = f"it unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB or {_MAX_MEMBERS:,} files, the limits"
_MAX_SECONDS = 600.0
_COMPILE_SECONDS = 300.0
#: For how long the index's answer that there is no wheel is taken as still true.
_ABSENT_SECONDS = 24 * 3600.0

#: Part of the cache's path: a change of how wheels are unpacked must not meet older folders.
_FORMAT = "v1"
_DATA_FOLDER = re.compile(r"[^/]+\.data/(?:purelib|platlib)/(?P<rest>.+)")
_UNREACHABLE = re.compile(
    r"Retrying|Max retries|Connection|ProxyError|[Tt]imed out|SSLError|IncompleteRead|HTTP error 5"
)
#: pip, unable to write a file of more bytes than its first argument says.
_BOUNDED_PIP = """
import resource, runpy, sys
bound = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (bound, bound))
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


class NoWheelError(UserError):
    """The index has no wheel that may be used here; asking again soon would not help."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A released distribution, unpacked; `digest` is the SHA-256 of its wheel."""

    name: str
    version: str
    digest: str
    requires: tuple[str, ...]

    @property
    def id(self) -> str:
        """The name of its folder."""
        return f"{self.name}-{self.version}-{self.digest[:16]}"


def runtime_cache(part: str) -> Path:
    """A folder of the cache that belongs to runtimes; made when missing."""
    return cache_folder("runtime", _FORMAT, part)


def files_folder(distribution: Distribution) -> Path:
    """Where its files lie, as they would in `site-packages`."""
    return runtime_cache("distributions") / distribution.id / "files"


def fetch_wheel(name: str, specifier: SpecifierSet, *, cached_only: bool = False) -> Distribution:
    """The release that pip takes for a requirement, or took when it was asked first.

    Raises: UserError, with a message that does not repeat the name, if there is no wheel for this interpreter, it is
        too large or damaged; RetryableError if the index cannot be reached.
    """
    wanted = f"{name}{specifier}"
    pick = runtime_cache("picks") / f"{hashlib.sha256(f'{wanted}|{_interpreter()}'.encode()).hexdigest()[:32]}.json"
    cached = _read_pick(pick)
    if cached is not None:
        return cached
    absent = pick.with_suffix(".absent")
    if absent.is_file() and time.time() - absent.stat().st_mtime < _ABSENT_SECONDS:
        raise UserError(str(read_record(absent)))
    if cached_only:
        raise UserError("it is not in the cache")
    note(f"fetching {wanted} for the runtime with pip download")
    with workspace() as work:
        try:
            wheel = _download(wanted, work)
        except NoWheelError as error:
            record(absent, str(error))
            raise
        distribution = _unpack(wheel, name, work)
    record(pick, distribution.id)
    return distribution


def _interpreter() -> str:
    return f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"


def _read_pick(pick: Path) -> Distribution | None:
    id_ = read_record(pick)
    return None if id_ is None else _read_distribution(runtime_cache("distributions") / str(id_))


def _read_distribution(folder: Path) -> Distribution | None:
    data = read_record(folder / "distribution.json")
    return None if data is None else Distribution(**{**data, "requires": tuple(data["requires"])})


def _download(wanted: str, work: Path) -> Path:
    wheels, scratch = work / "wheels", work / "scratch"
    for folder in (wheels, scratch):
        folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONIOENCODING": "utf-8"}
    environment.pop("PIP_REQUIRE_VIRTUALENV", None)
    command = [sys.executable, "-P", "-c", _BOUNDED_PIP, str(MAX_WHEEL_BYTES), "download", "--quiet"]
    command += ["--only-binary", ":all:", "--no-deps", "--no-cache-dir", "--no-input", "--progress-bar", "off"]
    command += ["--retries", "1", "--disable-pip-version-check", "--dest", str(wheels), wanted]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, cwd=scratch, env=environment,
            timeout=_MAX_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RetryableError(f"pip took more than {_MAX_SECONDS:.0f} s to fetch it; run again") from error
    fetched = sorted(wheels.glob("*.whl"))
    if done.returncode == 0 and fetched:
        return fetched[0]
    raise _explain(done.stderr)


def _explain(stderr: str) -> UserError:
    if "File too large" in stderr:
        return NoWheelError(f"its wheel has more than {MAX_WHEEL_BYTES >> 20} MiB, the limit")
    if _UNREACHABLE.search(stderr):
        return RetryableError("the package index cannot be reached; check the network, run again")
    if "from versions:" in stderr or "No matching distribution" in stderr:
        return NoWheelError(
            "there is no wheel of it for this Python and platform, and an sdist is not built: that runs its code"
        )
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR")] or stderr.splitlines()[-1:]
    detail = errors[-1].removeprefix("ERROR:").strip() if errors else "it said nothing"
    return UserError(f"pip could not fetch it: {detail}")


def _unpack(wheel: Path, name: str, work: Path) -> Distribution:
    """Put the files of a wheel into the cache, unless they are there."""
    digest = sha256_file(wheel)
    folder = work / "distribution"
    try:
        with zipfile.ZipFile(wheel) as archive:
            facts = _read_metadata(archive)
            if canonicalize_name(facts.name) != name:
                raise UserError(f"what was fetched is {facts.name} {facts.version}; check the index settings of pip")
            distribution = Distribution(name, str(Version(facts.version)), digest, facts.requires)
            target = files_folder(distribution).parent
            if _read_distribution(target) is not None:
                return distribution
            _extract(archive, folder / "files")
    except (zipfile.BadZipFile, EOFError, RuntimeError, NotImplementedError, ValueError) as error:
        raise UserError(f"its wheel is not readable: {error}") from error
    except OSError as error:
        raise UserError(f"its wheel cannot be unpacked: {error.strerror or error}") from error
    _compile(folder / "files")
    _write(folder / "distribution.json", io.BytesIO(json.dumps(asdict(distribution), indent=1).encode()))
    try:
        folder.rename(target)
    except OSError as error:
        if _read_distribution(target) is None:  # else another process was faster
            raise UserError(f"{target}: cannot be written: {error.strerror}; delete it and run again") from error
    return distribution


def _read_metadata(archive: zipfile.ZipFile) -> Facts:
    found = [name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
    if len(found) != 1 or archive.getinfo(found[0]).file_size > MAX_UNPACKED_BYTES // 100:
        raise UserError("its wheel holds no readable METADATA")
    return read_facts({found[0]: archive.read(found[0])})


def _extract(archive: zipfile.ZipFile, folder: Path) -> None:
    """Write the modules and metadata of a wheel; scripts, headers and links are left out."""
    members = [member for member in archive.infolist() if not member.is_dir()]
    if len(members) > _MAX_MEMBERS or sum(member.file_size for member in members) > MAX_UNPACKED_BYTES:
        raise UserError(_TOO_LARGE)
    for member in members:
        data_folder = _DATA_FOLDER.fullmatch(member.filename)
        path = data_folder["rest"] if data_folder else member.filename
        if not is_safe(member.filename) or not is_safe(path):
            raise UserError(f"its wheel holds the path {member.filename!r}, which leads out of its folder")
        if ".data/" in path.partition("/")[0] + "/" or member.external_attr >> 28 not in (0, 8):
            continue
        with archive.open(member) as source:
            _write(folder / path, source)  # which gives no more bytes than the archive's directory says


def _write(file: Path, source: IO[bytes]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as out:
        shutil.copyfileobj(source, out)
        out.flush()
        os.fsync(out.fileno())


def _compile(folder: Path) -> None:
    """Write bytecode, so that not every job compiles anew; in a process of its own, since it reads foreign source."""
    command = [sys.executable, "-P", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(folder)]
    try:
        subprocess.run(command, capture_output=True, check=False, timeout=_COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        note(f"{folder.parent.name}: its bytecode took too long; its modules are compiled when they are imported")
