"""Object stores: one contract, and several implementations.

contract:  the operations of every store: get, put, create, replace, list, delete.
local:     a directory (``local_directory``: its lock file); ``memory``: a dictionary, for tests.
s3:        a bucket, through boto3; ``s3_access`` makes the client, ``s3_errors`` translates errors.
retry:     repeats requests after transient failures; ``metrics`` counts requests.
contact:   detects outages of a store from its responses.
probe:     tests whether a store honours conditional writes.
urls:      parses a URL and opens its store.

Start at ``contract``. ``retry`` and ``metrics`` wrap a store and are stores themselves.
Below: model, errors.
Above: cache, sync, mount.
"""
