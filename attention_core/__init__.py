"""Attention and its reading: tensors in, values out.

The one rule of this package: no Flask, no pydantic, no network, no environment, no globals, and no files but
its own packaged data. `tests/unit/test_purity.py` walks the imports and fails where the rule is broken.
"""
