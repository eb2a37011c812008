"""A module that imports all modules of commands, before the process forks to run a command."""

import importlib
import pkgutil

import boto3  # noqa: F401

import s3fs_meta

# The FUSE extension must be imported before pyfuse3.
import s3fs_meta.fuse.extension

for module in pkgutil.walk_packages(s3fs_meta.__path__, "s3fs_meta."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
