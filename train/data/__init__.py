"""CIFAR-10 in every form that people have it in, decoded once, mapped into memory."""

from train.data.cache import Cifar10, open_cache, split
from train.data.load import load_cifar10, open_source

__all__ = ["Cifar10", "load_cifar10", "open_cache", "open_source", "split"]
