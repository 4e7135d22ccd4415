"""The service's answers about every row of files, on one machine or on many."""
