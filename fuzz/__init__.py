"""Fuzz targets of the protocol core, and what runs and checks them. Nothing here imports Trio; see README.md."""
