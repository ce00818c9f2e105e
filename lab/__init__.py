"""Tools that make the book: tables, figures, trained models, checks and pages. lipnb and lipscan never import them."""
