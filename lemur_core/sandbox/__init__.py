"""Sandbox for foreign code: jobs in, outcomes out; each job is a confined process forked from a preloaded server."""

from lemur_core.sandbox.client import META_PRELOAD, PRELOAD, Sandbox
from lemur_core.sandbox.server.jobs import Failure, Job, Limits, Outcome, Status

__all__ = ["META_PRELOAD", "PRELOAD", "Failure", "Job", "Limits", "Outcome", "Sandbox", "Status"]
