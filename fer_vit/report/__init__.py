"""Draws pictures and pages from arrays, without PyTorch or a model, and writes tables.

`draw`, `fonts`, `rendering` and `html` are for all pages. `explained_face` has what `records`,
`face_figures` and the scripts in the folder `page` show of a face. `plots`, `score_figures` and
`results_page` show the results of `evaluate` and `compare`.
"""
