"""The request and answer of every resource: the only definition of a field."""
