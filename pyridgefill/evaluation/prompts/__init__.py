"""What is asked: prompts with known answers, and texts."""
