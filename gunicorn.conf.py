"""So that a bare `gunicorn` in this folder serves as `attention-service serve` does."""

from service.gunicorn_conf import *  # noqa: F403
