"""The report of a study.

`summary.py` computes everything once; `text.py`, `plain.py` and `page.py` only lay it out. `plain.py` documents the
keys of the JSON.
"""
