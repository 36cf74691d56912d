"""SQL of the terminal's live view and of the doctor."""
