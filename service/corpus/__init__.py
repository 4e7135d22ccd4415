"""The service's answers over files, on one machine or a Ray cluster."""
