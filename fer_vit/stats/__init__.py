"""Numbers with their uncertainty: estimates, bootstrap, tests, scores and series."""
