"""One revision a file: ``NNNN_name.py`` runs ``NNNN_name.sql``."""
