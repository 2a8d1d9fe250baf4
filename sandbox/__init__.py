"""Running foreign code: jobs in, outcomes out; each job a confined process forked from a preloaded worker."""

from sandbox.client import PRELOAD, Sandbox
from sandbox.jobs import Job, Limits, Outcome, Status

__all__ = ["PRELOAD", "Job", "Limits", "Outcome", "Sandbox", "Status"]
