"""Stand-in for building objects from configurations."""


def build_from_cfg(cfg, registry, default_args=None):
    """Make what a configuration describes: the registry's entry of its `type`, called with the other entries."""
    return registry.build(cfg, default_args=default_args)
