"""Compares the expressions of persons between conditions or groups.

Intervals and tests are over persons. The results are written as a page.
"""
