"""One git command, kept from asking questions and from running what a repository brings along."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from lemur_core.files.errors import RetryableError, UserError

#: A transfer slower than this many bytes a second, for so many seconds, has failed.
_SLOW_BYTES, _SLOW_SECONDS = 1000, 60

_PROTOCOLS = "https:http:ssh:git:file"
#: What would make git work on another repository than the one named, as inside a hook.
_LOCAL = re.compile(
    r"GIT_(?:DIR|WORK_TREE|COMMON_DIR|INDEX_FILE|NAMESPACE|PREFIX|(?:ALTERNATE_)?OBJECT_DIRECTOR(?:Y|IES)|SHALLOW_FILE)"
)
_UNREACHABLE = re.compile(
    r"resolve host|Connection|timed out|unable to access|early EOF|hung up|reset by peer|RPC failed|Could not connect"
)
_ANSWERED = re.compile(r"error: (?:401|403|404|410)|[Rr]epository not found|could not read Username|not appear to be")


class GitError(UserError):
    """A command that git refused, or the other side did."""


def run_git(shown: str, repository: Path | None, *arguments: str, stdin: bytes = b"") -> bytes:
    """The output of a git command.

    Args: shown: what the command is about, for messages.
    Raises: RetryableError if the other side cannot be reached; GitError if git fails otherwise; UserError without git.
    """
    program = shutil.which("git")
    if program is None:
        raise UserError(f"{shown}: git is not installed; install it, or name a released package instead")
    environment = {key: value for key, value in os.environ.items() if not _LOCAL.fullmatch(key)}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C"}
    environment |= {"GIT_ALLOW_PROTOCOL": _PROTOCOLS}
    environment.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
    command = [program, "-c", f"core.hooksPath={os.devnull}", "-c", "gc.auto=0", "-c", "maintenance.auto=false"]
    command += ["-c", f"http.lowSpeedLimit={_SLOW_BYTES}", "-c", f"http.lowSpeedTime={_SLOW_SECONDS}"]
    if repository is not None:
        command += ["--git-dir", str(repository)]
    done = subprocess.run([*command, *arguments], input=stdin, capture_output=True, check=False, env=environment)
    if done.returncode != 0:
        raise _explain(shown, done.stderr.decode("utf-8", "replace"))
    return done.stdout


def _explain(shown: str, stderr: str) -> UserError:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    worst = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "no reason")
    detail = re.sub(r"//[^/@\s]*@", "//", worst.removeprefix("fatal:").removeprefix("error:").strip())
    if _UNREACHABLE.search(stderr) and not _ANSWERED.search(stderr):
        return RetryableError(f"{shown}: cannot be reached: {detail}; check the network, run again")
    return GitError(f"{shown}: {detail}; check the address, the revision and your access")
