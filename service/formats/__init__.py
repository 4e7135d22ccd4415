"""How answers are written."""
