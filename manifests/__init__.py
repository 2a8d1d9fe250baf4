"""Records, schemas, manifests and dataset folders: everything that is written to disk."""
