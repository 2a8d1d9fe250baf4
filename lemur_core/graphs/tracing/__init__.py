"""One network run and recorded in the sandbox, and the proof that two graphs compute the same."""
