"""Object stores: one contract, several implementations.

contract   what every store promises: get, put if absent, list, delete
local      a directory; ``memory``: a dictionary, for tests
s3         a bucket, through boto3; ``s3_access`` makes the client, ``s3_errors`` translates
retry      another attempt where the error permits one; ``metrics`` counts requests
probe      whether a store honours conditional writes
urls       from a URL to an open store

Start at ``contract``. ``retry`` and ``metrics`` wrap a store and are stores themselves.
Below: model, errors.
Above: cache, sync, mount.
"""
