"""What makes the book: its tables, figures, trained models, checks and pages. It imports lipnb, never the other way."""
