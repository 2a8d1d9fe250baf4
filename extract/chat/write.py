"""`write`: from a requirement to the block's closed file; only where every part of it may be passed on."""

from extract.chat.requirement import requirement_of
from extract.chat.result import No, Subject, Talk
from extract.chat.rights import Rights
from lemur_core.files.markdown import block
from manifests.conversations.draw import Draw

_ASKED = (
    "Write a self-contained PyTorch file whose class `{name}` meets these requirements.",
    "Implement `{name}` in one closed file:",
    "I need the code of a module `{name}` as follows, in one file that needs no other.",
    "Give me a Python file that defines the module `{name}`:",
)

_ALL = 10


def write(subject: Subject, draw: Draw, rights: Rights) -> Talk | No:
    """Requirements drawn from the spec's facts, answered with the block's file, its header included."""
    spec = subject.spec
    if spec.block in rights.barred:
        return No("license", rights.barred[spec.block])
    if not spec.cases:
        return No("not_run", f"it came to the rung {spec.level}")
    user = [draw.pick(_ASKED, "question").format(name=spec.name), ""]
    user += [f"- {line}" for line in requirement_of(spec, draw, _ALL)]
    answer = "\n".join(block([subject.code.removesuffix("\n")], "python")).rstrip("\n")
    return Talk("\n".join(user), answer, notice=rights.notice(spec))
