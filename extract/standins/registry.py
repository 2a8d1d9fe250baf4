"""Stand-in for the registries that look classes up by a string: `MODELS.build(dict(type="BN"))`."""

import contextlib


class Registry:
    """Classes and functions by name.

    Takes the calls of the registries of OpenMMLab (`register_module`, `get`, `build`, scopes) and of fvcore
    (`register`, `get`); scopes and parents are one registry here. It holds what the file registers, nothing more.
    """

    def __init__(self, name="registry", *_, **__):
        self.name = self._name = name
        self.scope = self._scope = ""
        self.parent = None
        self.children = {}
        self._module_dict = {}

    def __len__(self):
        return len(self._module_dict)

    def __contains__(self, key):
        return self.get(key) is not None

    def __iter__(self):
        return iter(self._module_dict.items())

    def __repr__(self):
        return f"Registry({self.name!r}, {sorted(self._module_dict)})"

    @property
    def module_dict(self):
        """What is registered."""
        return self._module_dict

    def register_module(self, name=None, force=False, module=None):
        """Register `module`, or make a decorator that registers what it decorates."""
        if module is None and callable(name):
            name, module = None, name

        def add(item):
            names = [item.__name__] if name is None else [name] if isinstance(name, str) else list(name)
            for key in names:
                self._module_dict[key] = item
            return item

        return add if module is None else add(module)

    def register(self, obj=None, name=None):
        """Register `obj`, or make a decorator that registers what it decorates."""
        if isinstance(obj, str):
            name, obj = obj, None
        return self.register_module(name=name, module=obj)

    def get(self, key):
        """What is registered under a key, with or without a scope ("mmdet.ResNet"); None if nothing is."""
        if not isinstance(key, str):
            return key
        return self._module_dict.get(key, self._module_dict.get(key.rpartition(".")[2]))

    def build(self, cfg, *args, default_args=None, **kwargs):
        """Make the object that a configuration describes: its `type`, called with the other entries."""
        if cfg is None:
            return None
        if isinstance(cfg, (list, tuple)):
            import torch

            return torch.nn.Sequential(*(self.build(item, *args, default_args=default_args, **kwargs) for item in cfg))
        if isinstance(cfg, str):
            cfg = {"type": cfg}
        values = {**(default_args or {}), **cfg, **kwargs}
        kind = values.pop("type")
        values.pop("_scope_", None)
        target = self.get(kind)
        if target is None:
            raise KeyError(f"{kind!r} is not registered in {self.name!r}; this file holds {sorted(self._module_dict)}")
        return target(*args, **values)

    @contextlib.contextmanager
    def switch_scope_and_registry(self, scope=None):
        """The registry itself: all scopes are one here."""
        yield self

    def import_from_location(self):
        """Do nothing: everything is in this file."""

    @staticmethod
    def infer_scope():
        """No scope."""
        return ""

    @staticmethod
    def split_scope_key(key):
        """The scope and the rest of a key."""
        scope, _, rest = key.rpartition(".")
        return scope or None, rest
