"""Language models that write networks: behind an endpoint, or on this machine."""
