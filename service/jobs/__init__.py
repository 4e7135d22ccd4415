"""What each question computes: from a validated request and a session to the answer's members.

No HTTP in here: a job takes any `Session`, and raises the errors of `service.errors`.
"""
