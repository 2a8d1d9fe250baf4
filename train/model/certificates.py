"""The certificate by which LEMUR's head names a network, computed in the sandbox by the file of a checkout of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from lemur_core.sandbox import Limits
from lemur_core.sandbox.cached import CachedSandbox
from lemur_core.sandbox.stage import SandboxStage

#: The file of a checkout that defines `arch_uid(code)`. No release has it.
ARCH_UID = "ab/nn/util/ArchUID.py"

_CERTIFY = SandboxStage[str](
    "lemur_core.sandbox.loader:run_text",
    Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")],
    Limits(),
    label="certificates",
    unit="networks",
)


@dataclass(frozen=True, slots=True)
class _Program:
    code: str


def compute_certificates(arch_uid: str, codes: Iterable[str], *, unsafe: bool) -> dict[str, str | None]:
    """Return the certificate of each code: 32 hexadecimal digits; None where LEMUR's file fails.

    Args:
        arch_uid: the text of that file.
        unsafe: run it without the sandbox.
    """
    texts = list(dict.fromkeys(codes))
    programs = {str(at): _Program(f"{arch_uid}\nanswer = arch_uid({code!a})\n") for at, code in enumerate(texts)}
    with CachedSandbox(entries=[_CERTIFY.guest], preload=("numpy",), unsafe=unsafe) as box:
        return {texts[int(reply.key)]: reply.answer for reply in _CERTIFY.run(box, programs)}
