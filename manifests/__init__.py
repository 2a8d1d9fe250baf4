"""What is written down: records, schemas, manifests, dataset folders."""
