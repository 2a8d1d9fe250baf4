"""Inject domain knowledge into a frozen LLM as a single token: domain experts, a codebook, an untrained router."""
