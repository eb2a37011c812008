"""Object stores: one contract, several implementations.

contract   what every store promises: get, put if absent, list, delete
local      a directory; ``memory``: a dictionary, for tests
s3         a bucket, through boto3; ``s3_access`` makes the client, ``s3_errors`` translates
retry      repeats requests that failed transiently; ``metrics`` counts requests
contact    the outages of a store, as its answers show them
probe      tests whether a store honours conditional writes
urls       parses a URL and opens its store

Start at ``contract``. ``retry`` and ``metrics`` wrap a store and are stores themselves.
Below: model, errors.
Above: cache, sync, mount.
"""
