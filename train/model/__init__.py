"""Recipes, slots and the contract of a network."""
