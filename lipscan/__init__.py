"""Models, texts, scans, sweeps and the command `lipnb`: what people with models and notebooks use of lipnb."""
