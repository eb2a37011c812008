"""Mount options: their table, their syntax, and their parsed values.

option_table:     the table of all options, with the documentation of each.
transfer_options: the rows of the table about the cache, uploads and downloads.
option_row:       the fields of one row.
option_syntax:    parsers for values: sizes, times, points in time, masks, keywords.
rate_limit:       limits of a transfer rate, and their syntax.
listen_address:   the address on which an HTTP server listens.
settings:         the parsed options as one immutable value.

Start at ``settings``, then ``option_table``.
Below: model, limits, errors, clock.
Above: the packages of higher rank; each of them uses a part of ``settings``.
"""
