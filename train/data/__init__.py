"""CIFAR-10 in every form that people have it in, decoded once, mapped into memory."""

from train.data.cache import Cifar10, open_cache
from train.data.load import load_cifar10
from train.data.split import split

__all__ = ["Cifar10", "load_cifar10", "open_cache", "split"]
