"""What is proved of emitted files in the sandbox; each guest module lies beside its host."""
