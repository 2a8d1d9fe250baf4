"""Stubs for what frameworks provide to models besides layers: registries, logging, checkpoints, edges by distance.

Nothing is downloaded, and no class is looked up by a checkpoint's name: a block holds one class, not all.
"""

import contextlib
import functools
import logging

import torch


class NotInstalled:
    """The value of an optional import whose package is not installed: false, and an error once it is used."""

    def __init__(self, package):
        self._package = package

    def __bool__(self):
        return False

    def __instancecheck__(self, instance):
        return False

    def __subclasscheck__(self, subclass):
        return False

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise ModuleNotFoundError(f"No module named {self._package!r} (optional, not part of this block)")

    def __call__(self, *_, **__):
        """Fail as the import would have."""
        raise ModuleNotFoundError(f"No module named {self._package!r} (optional, not part of this block)")


class NotDefined:
    """A name that nothing defines in the block's source: the block calls it where it is read, an error as there."""

    def __init__(self, name):
        self._name = name

    def _fail(self, *_, **__):
        raise NameError(f"name {self._name!r} is not defined, neither here nor where this block comes from")

    __bool__ = __call__ = __format__ = __getattr__ = __getitem__ = _fail


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


def has_ops():
    """Yes: the compiled operators of the runtime are there."""
    return True


def assert_has_ops():
    """Check nothing: an operator that is missing fails by itself."""


class NamedLogger(logging.Logger):
    """A logger that can be asked for by its class."""

    @classmethod
    def get_instance(cls, name="root", **_):
        """The logger of a name."""
        return logging.getLogger(name)

    @classmethod
    def get_current_instance(cls):
        """The root logger."""
        return logging.getLogger()

    @classmethod
    def check_instance_created(cls, name):
        """Return whether a logger of that name exists; the standard library creates it on request."""
        return True


def print_log(msg, logger=None, level=logging.INFO):
    """Log a message: to a logger, to the logger of a name, or nowhere ("silent")."""
    if logger == "silent":
        return
    if isinstance(logger, logging.Logger):
        logger.log(level, msg)
    elif logger is None or logger == "current":
        logging.getLogger(__name__).log(level, msg)
    else:
        logging.getLogger(logger).log(level, msg)


@functools.cache
def _warn_once(logger, message):
    logger.warning(message)


@functools.cache
def get_logger(name=None, *_, **__):
    """The logger of a name, with `warning_once`, `info_once` and `warning_advice`."""
    logger = logging.getLogger(name)
    logger.warning_once = lambda message, *_, **__: _warn_once(logger, str(message))
    logger.info_once = lambda message, *_, **__: None
    logger.warning_advice = logger.warning
    return logger


def load_checkpoint(*_, **__):
    """Fail: no file is read."""
    raise NotImplementedError("loading a checkpoint is not part of this block: give its tensors to `load_state_dict`")


# Layers of torch that OpenMMLab's libraries register as they are imported, whoever asks for them: name, class.
TORCH_LAYERS = (
    "ReLU:ReLU LeakyReLU:LeakyReLU PReLU:PReLU RReLU:RReLU ReLU6:ReLU6 ELU:ELU Sigmoid:Sigmoid Tanh:Tanh"
    " SiLU:SiLU GELU:GELU HSwish:Hardswish Linear:Linear Conv:Conv2d Conv1d:Conv1d Conv2d:Conv2d Conv3d:Conv3d"
    " deconv:ConvTranspose2d deconv3d:ConvTranspose3d nearest:Upsample bilinear:Upsample zero:ZeroPad2d"
    " reflect:ReflectionPad2d replicate:ReplicationPad2d BN:BatchNorm2d BN1d:BatchNorm1d BN2d:BatchNorm2d"
    " BN3d:BatchNorm3d SyncBN:SyncBatchNorm GN:GroupNorm LN:LayerNorm IN:InstanceNorm2d IN1d:InstanceNorm1d"
    " IN2d:InstanceNorm2d IN3d:InstanceNorm3d"
)


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

    @property
    def module_dict(self):
        """Return the registered objects by key."""
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
        """Return the object registered under a key, with or without a scope ("mmdet.ResNet"); None if there is none."""
        if not isinstance(key, str):
            return key
        for name in (key, key.rpartition(".")[2]):
            if name in self._module_dict:
                return self._module_dict[name]
        layer = dict(pair.split(":") for pair in TORCH_LAYERS.split()).get(name)
        return None if layer is None else getattr(torch.nn, layer)

    def build(self, cfg, *args, default_args=None, **kwargs):
        """Make the object that a configuration describes: its `type`, called with the other entries."""
        if cfg is None:
            return None
        if isinstance(cfg, (list, tuple)):
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


def build_from_cfg(cfg, registry, default_args=None):
    """Make what a configuration describes: the registry's entry of its `type`, called with the other entries."""
    return registry.build(cfg, default_args=default_args)


def radius_graph(
    x,
    r,
    batch=None,
    loop=False,
    max_num_neighbors=32,
    flow="source_to_target",
    num_workers=1,
    batch_size=None,
):
    """Edges (2, E) between the points (N, F) of one example that are no more than `r` apart, by centre.

    A centre with more neighbours than `max_num_neighbors` keeps those of the smallest numbers; None keeps all.
    """
    points = x[:, None] if x.dim() == 1 else x
    near = (points[:, None] - points[None]).square().sum(-1) <= r * r
    if batch is not None:
        near &= batch[:, None] == batch[None]
    if not loop:
        near.fill_diagonal_(False)
    if max_num_neighbors is not None:
        near &= near.cumsum(1) <= max_num_neighbors
    centre, neighbour = near.nonzero(as_tuple=True)
    return torch.stack((neighbour, centre) if flow == "source_to_target" else (centre, neighbour))
