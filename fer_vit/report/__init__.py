"""Draws pictures and pages from arrays, without PyTorch, and writes tables.

`draw`, `fonts`, `rendering` and `html` are for all of them. `records`, `face_figures` and the
folder `page` show explained faces; `plots`, `score_figures` and `results_page` show the results of
`evaluate` and `compare`.
"""
