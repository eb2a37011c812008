"""The lease: which host may write, and how another host takes over.

lease    the object that names the writing host; each holder has a higher epoch
hold     the holder name and the nonces that prove a lease to be this host's own
fence    a record at the end of the chain that ends the former writer's turn
epoch    the number of a holder; objects of a lower one are refused

Start at ``lease``, then ``fence``. ``lease_repair`` replaces a lease that is lost or damaged.
Below: chain, codec.lease (bytes).
Above: opening, follower, session.
"""
