"""Inject domain knowledge into a frozen LLM as a single token: domain experts, projectors, an untrained router."""
