"""Imports of everything that commands load, so that a process has it before it forks."""

import importlib
import pkgutil

import boto3  # noqa: F401

import s3fs_meta

# First, as in the program: it works only if pyfuse3 was not there before.
import s3fs_meta.fuse.extension

for module in pkgutil.walk_packages(s3fs_meta.__path__, "s3fs_meta."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
