"""Models, texts, scans, sweeps and the command `lipnb`, built on the library `lipnb`.

Begin with `lipnb.models.load`, `lipnb.corpora.read`, `lipnb.scan` and `lipnb.sweeps.record`, which open this package,
or with ``lipnb --help``. Its packages are `lipscan.models`, `lipscan.corpora`, `lipscan.scanning`, `lipscan.drift`,
`lipscan.sweeps` and `lipscan.recording`.
"""
