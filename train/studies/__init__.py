"""Many runs: ablations and searches."""
