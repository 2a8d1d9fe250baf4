"""Fine-tuning conversations from the kept records, whose questions and answers are measured, not guessed."""
