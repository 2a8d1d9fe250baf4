"""The text of a class `A` with a constructor and a forward."""


def class_text(forward: str, init: str = "pass", arguments: str = "x", signature: str = "") -> str:
    """Return the class. Args: forward, init: statements. arguments, signature: of forward and of the constructor."""
    body, lines = "\n        ".join(init.split("\n")), "\n        ".join(forward.split("\n"))
    return f"""
class A(nn.Module):
    def __init__(self{", " + signature if signature else ""}):
        super().__init__()
        {body}

    def forward(self, {arguments}):
        {lines}
"""
