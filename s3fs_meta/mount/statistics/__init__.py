"""The statistics of a mount, and the programs that read them.

figures:        the statistics that ``status`` reports.
health:         compares the statistics with the user's limits.
latency:        evaluates histograms of request latencies.
prometheus:     the statistics as Prometheus metrics.
metrics_server: the metrics over HTTP; ``metrics_option`` opens its socket.
costs:          the cost of the requests to the store.
prices:         the table of prices, by default the prices in ``aws-s3-standard.toml``.

Start at ``figures``.
Below: requests (reading the statistics of a mount), sync (request log, session).
Above: service, cli.status, cli.cost.
"""
