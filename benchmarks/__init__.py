"""How fast the package is, against floors and peers, with the proof that what was written is right.

``python -m benchmarks`` (or ``make bench``) runs everything and writes ``docs/benchmarks.md``.
"""
