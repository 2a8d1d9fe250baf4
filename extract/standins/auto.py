"""Stand-ins for what picks a class by the name in a checkpoint or configuration: a block holds one class, not all."""


class AutoClass:
    """Fails with a clear message where a class would be looked up by name."""

    @classmethod
    def from_config(cls, *_, **__):
        """Fail: the class that a configuration names is not part of this file."""
        raise NotImplementedError("the class that a configuration names is not part of this block: pass the module in")

    @classmethod
    def from_pretrained(cls, *_, **__):
        """Fail: nothing is downloaded."""
        raise NotImplementedError("loading pretrained weights is not part of this block")

    @classmethod
    def register(cls, *_, **__):
        """Do nothing: there is no table to add to."""


def load_backbone(config):
    """Fail: the backbone that a configuration names is not part of this file."""
    raise NotImplementedError("the backbone that a configuration names is not part of this block: pass the module in")
