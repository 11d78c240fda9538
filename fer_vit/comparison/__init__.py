"""Compares the expressions of persons between conditions or groups:
intervals and tests over persons, and a page.
"""
