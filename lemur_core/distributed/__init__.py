"""Work in tasks: the executors that run them, and the folder through which they exchange files."""
