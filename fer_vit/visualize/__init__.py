"""What a report shows of faces: evidence, heads, relations."""
