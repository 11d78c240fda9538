"""Arrays in, pictures and pages out. No torch."""
