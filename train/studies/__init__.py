"""Many runs: ablations."""
