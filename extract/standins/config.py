"""Stand-in for configuration objects: dicts whose entries are attributes too."""


class ConfigDict(dict):
    """A dict that is read and written by attributes as well; dicts inside it become such dicts."""

    def __init__(self, *args, **kwargs):
        super().__init__()
        for key, value in dict(*[arg for arg in args if arg], **kwargs).items():
            self[key] = value

    def __setitem__(self, key, value):
        if isinstance(value, dict) and not isinstance(value, ConfigDict):
            value = ConfigDict(value)
        elif isinstance(value, (list, tuple)):
            value = type(value)(ConfigDict(v) if type(v) is dict else v for v in value)
        super().__setitem__(key, value)

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}") from None

    def __setattr__(self, name, value):
        self[name] = value

    def __delattr__(self, name):
        del self[name]

    def copy(self):
        """A shallow copy of the same kind."""
        return type(self)(self)

    def to_dict(self):
        """Plain dicts all the way down."""
        return {key: value.to_dict() if isinstance(value, ConfigDict) else value for key, value in self.items()}

    def update(self, *args, **kwargs):
        """As of dict, but entries are taken in as by assignment."""
        for key, value in dict(*args, **kwargs).items():
            self[key] = value
