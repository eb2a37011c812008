"""The entry point of ``python -m s3fs_meta``."""

from s3fs_meta.cli.start import program

if __name__ == "__main__":
    program()
