"""Compares the expressions of persons between conditions or groups.

Intervals and tests are over persons; the result is a page.
"""
