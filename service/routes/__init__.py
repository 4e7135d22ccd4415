"""One blueprint per resource. A route parses, calls, answers; what it promises stands in its contract."""

from flask import Blueprint

from service.routes import (
    attention,
    contract,
    coreference,
    docs,
    heads,
    health,
    kv_cache,
    links,
    metrics,
    model,
    page,
)

BLUEPRINTS: tuple[Blueprint, ...] = (
    attention.bp,
    heads.bp,
    coreference.bp,
    kv_cache.bp,
    model.bp,
    links.bp,
    health.bp,
    metrics.bp,
    contract.bp,
    page.bp,
    docs.bp,
)
