"""What makes the book: its tables, figures, trained models, checks and pages. lipnb and lipscan never import it."""
