"""Reports: the evidence for each face, attention heads, relations between regions."""
