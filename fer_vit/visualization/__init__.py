"""The report of `visualize` and of the app: which faces it shows, and what explains them.

A `Part` has photos or frames with the views and crops of their faces. For each face, the model
gives an `Evidence`, from which `fer_vit.report` draws: it knows no model, and gets arrays.
"""
