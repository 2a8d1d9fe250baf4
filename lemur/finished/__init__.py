"""Finished folders of any package: verified and traced."""
