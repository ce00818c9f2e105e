"""Readers of the demonstration models: embedded, in a package of the registry, or of the laboratory's data."""
