"""The core's one rule: tensors in, values out. Read from its source, module by module."""

import ast
import sys
from pathlib import Path

import pytest

import attention_core

PACKAGE = "attention_core"
ROOT = Path(attention_core.__file__).parent

THIRD_PARTY = {"numpy", "scipy", "torch", "transformers"}
# Modules of the standard library that reach files, the environment, other processes or the network.
FORBIDDEN_STDLIB = {
    *(
        "os",
        "io",
        "pathlib",
        "shutil",
        "tempfile",
        "glob",
        "fileinput",
        "mmap",
        "sqlite3",
        "dbm",
        "shelve",
        "pickle",
    ),
    *(
        "socket",
        "ssl",
        "http",
        "urllib",
        "ftplib",
        "smtplib",
        "socketserver",
        "xmlrpc",
        "asyncio",
        "webbrowser",
    ),
    *("subprocess", "multiprocessing", "ctypes", "getpass", "logging"),
}
FORBIDDEN_BUILTINS = {"open", "exec", "eval", "__import__", "input", "print"}
# Ways to files and to the network through libraries that are allowed.
FORBIDDEN_ATTRIBUTES = {
    "from_pretrained",
    "import_module",
    "environ",
    "getenv",
    "hub",
    "load",
    "fromfile",
    "tofile",
}


def violations(source: str) -> list[str]:
    """What in one module's source breaks the rule."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [f"imports {alias.name}" for alias in node.names if not allowed(alias.name)]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            if node.level:
                found.append("imports relatively")
            elif not allowed(node.module):
                found.append(f"imports {node.module}")
            found += [f"imports {name}" for name in names if name.split(".")[-1] in FORBIDDEN_ATTRIBUTES]
        elif isinstance(node, ast.Name) and node.id in FORBIDDEN_BUILTINS:
            found.append(f"uses {node.id}")
        elif isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_ATTRIBUTES:
            found.append(f"uses .{node.attr}")
        elif isinstance(node, ast.Global):
            found.append(f"declares global {', '.join(node.names)}")
    return found


def allowed(module: str) -> bool:
    top = module.split(".")[0]
    if top in sys.stdlib_module_names:
        return top not in FORBIDDEN_STDLIB
    return top in THIRD_PARTY | {PACKAGE}


def imported_modules(source: str) -> set[str]:
    """Modules of the package that one module's source imports, at any depth of nesting."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == PACKAGE}


def file_of(module: str) -> Path | None:
    """The file of a module of the package; None where the name is that of a function or class in a module."""
    path = ROOT.joinpath(*module.split(".")[1:])
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.exists()), None)


def reached_from(start: set[str]) -> dict[str, Path]:
    """All modules that importing `start` brings in, inside the package."""
    reached: dict[str, Path] = {}
    waiting = set(start)
    while waiting:
        module = waiting.pop()
        file = file_of(module)
        if file is not None and module not in reached:
            reached[module] = file
            waiting |= imported_modules(file.read_text(encoding="utf-8"))
    return reached


MODULES = {
    ".".join((PACKAGE, *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): file
    for file in sorted(ROOT.rglob("*.py"))
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_the_core_touches_no_framework_file_network_environment_or_global(module):
    assert violations(MODULES[module].read_text(encoding="utf-8")) == []


def test_what_the_package_imports_lies_within_the_modules_that_are_checked():
    reached = reached_from({PACKAGE, f"{PACKAGE}.kv_cache"})
    assert {f"{PACKAGE}.attention", f"{PACKAGE}.errors", f"{PACKAGE}.kv_cache.presets"} <= reached.keys()
    assert set(reached.values()) <= set(MODULES.values())


@pytest.mark.parametrize(
    ("source", "violation"),
    [
        ("import flask", "imports flask"),
        ("from flask import Flask", "imports flask"),
        ("import pydantic.fields as f", "imports pydantic.fields"),
        ("from pydantic_settings import BaseSettings", "imports pydantic_settings"),
        ("import requests", "imports requests"),
        ("import httpx", "imports httpx"),
        ("from urllib.request import urlopen", "imports urllib.request"),
        ("import socket", "imports socket"),
        ("from huggingface_hub import hf_hub_download", "imports huggingface_hub"),
        ("from service.settings import Settings", "imports service.settings"),
        ("def f():\n    import os\n    return os.environ['HOME']", "imports os"),
        ("from os import environ", "imports os"),
        ("from pathlib import Path", "imports pathlib"),
        ("def f(name):\n    with open(name) as file:\n        return file.read()", "uses open"),
        ("import torch\ntorch.load('weights.pt')", "uses .load"),
        ("from torch import load", "imports torch.load"),
        ("from torch import hub", "imports torch.hub"),
        ("import transformers\ntransformers.AutoModel.from_pretrained('x')", "uses .from_pretrained"),
        ("import importlib\nimportlib.import_module('flask')", "uses .import_module"),
        ("from . import errors", "imports relatively"),
        ("n = 0\ndef f():\n    global n\n    n += 1", "declares global n"),
    ],
)
def test_the_check_catches_a_module_that_breaks_the_rule(source, violation):
    assert violation in violations(source)


def test_the_check_lets_pass_what_the_core_may_use():
    source = (
        "import json, math\n"
        "from importlib import resources\n"
        "import torch\n"
        "from transformers import AttentionInterface\n"
        "from attention_core.errors import ShapeError\n"
        "data = json.loads(resources.files(__package__).joinpath('presets.json').read_text())\n"
    )
    assert violations(source) == []
