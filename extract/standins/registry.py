"""Stand-in for the registries that look classes up by a string: `MODELS.build(dict(type="BN"))`."""

import contextlib

# Layers of torch that OpenMMLab's libraries register as they are imported, whoever asks for them: name, class.
_LAYERS = (
    "ReLU:ReLU LeakyReLU:LeakyReLU PReLU:PReLU RReLU:RReLU ReLU6:ReLU6 ELU:ELU Sigmoid:Sigmoid Tanh:Tanh"
    " SiLU:SiLU GELU:GELU HSwish:Hardswish Linear:Linear Conv:Conv2d Conv1d:Conv1d Conv2d:Conv2d Conv3d:Conv3d"
    " deconv:ConvTranspose2d deconv3d:ConvTranspose3d nearest:Upsample bilinear:Upsample zero:ZeroPad2d"
    " reflect:ReflectionPad2d replicate:ReplicationPad2d BN:BatchNorm2d BN1d:BatchNorm1d BN2d:BatchNorm2d"
    " BN3d:BatchNorm3d SyncBN:SyncBatchNorm GN:GroupNorm LN:LayerNorm IN:InstanceNorm2d IN1d:InstanceNorm1d"
    " IN2d:InstanceNorm2d IN3d:InstanceNorm3d"
)
TORCH_LAYERS = dict(pair.split(":") for pair in _LAYERS.split())


class Registry:
    """Classes and functions by name.

    Takes the calls of the registries of OpenMMLab (`register_module`, `get`, `build`, scopes) and of fvcore
    (`register`, `get`); scopes and parents are one registry here. It holds what the file registers, and common layers
    of torch under the names that these libraries give them.
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
        for name in (key, key.rpartition(".")[2]):
            if name in self._module_dict:
                return self._module_dict[name]
        if name not in TORCH_LAYERS:
            return None
        import torch

        return getattr(torch.nn, TORCH_LAYERS[name])

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
