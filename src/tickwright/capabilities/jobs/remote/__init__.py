"""Workers in other languages: sessions, claims and results over HTTP, on the statements of the Python worker."""
