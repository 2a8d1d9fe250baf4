"""Training runs: the job, the loop in the sandbox, the run folder."""
