"""What has nothing to do with networks: files, processes, progress, errors."""
