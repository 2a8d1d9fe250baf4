"""Fine-tuning conversations from the kept records: what is asked and answered is measured, not guessed."""
