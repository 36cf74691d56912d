"""Entities and modules as operators see them: rows, imports, explanations and the matrix."""
