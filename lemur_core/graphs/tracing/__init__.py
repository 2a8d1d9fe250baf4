"""Run and record one network in the sandbox, and prove that two graphs compute the same."""
