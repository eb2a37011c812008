"""Kept points: named points in time that retention keeps.

kept_points: lists and reads the kept points in the bucket.
pins:        computes the objects that kept points need.
kept_costs:  computes the packs that would be garbage without the kept points.
kept_expiry: decides which points a policy drops because of their age.

Start at ``kept_points``. ``sync.administration.keeping`` creates and drops kept points.
Below: codec.kept_point, objects.
Above: garbage, points_in_time, check.
"""
