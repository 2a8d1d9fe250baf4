"""Sandbox guest: compute the certificate of a network by the file of LEMUR's head that names networks by it."""

from dataclasses import dataclass

from lemur_core.sandbox.loader import load


@dataclass(frozen=True, slots=True)
class CodeToCertify:
    """The text of `ab/nn/util/ArchUID.py`, and that of a network."""

    arch_uid: str
    code: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """The name of a computation: blake2b of 16 bytes, in hexadecimal digits."""

    certificate: str


def certify(task: CodeToCertify) -> Certificate:
    """Return the certificate of a network. Raises: whatever LEMUR's file raises."""
    return Certificate(str(vars(load(task.arch_uid, "arch_uid"))["arch_uid"](task.code)))
