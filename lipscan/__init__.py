"""What is built on lipnb for people with models and notebooks: models, texts, scans, sweeps, the command `lipnb`."""
