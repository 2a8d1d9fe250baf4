"""CIFAR-10 in every form that people have it in, decoded once, mapped into memory."""

from train.data.cache import Cifar10, load_cifar10, open_cache, open_source, split

__all__ = ["Cifar10", "load_cifar10", "open_cache", "open_source", "split"]
