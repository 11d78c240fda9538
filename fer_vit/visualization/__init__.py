"""The report of `visualize` and of the app: which faces it shows, and what explains them.

A `Part` has photos or frames, with the views and crops of their faces. The model gives each view an
`Evidence`; `fer_vit.report`, which knows no model, draws both.
"""
