"""The service's answers over files of texts, on one machine or many."""
