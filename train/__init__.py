"""Blocks in, trained CIFAR-10 models, ablation tables and LEMUR records out."""
