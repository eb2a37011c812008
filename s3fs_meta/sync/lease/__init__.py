"""The lease, which determines which host may write, and its takeover by another host.

lease:   the object that says which host may write; each new holder has a higher epoch.
hold:    the holder name and the nonces that prove that a lease belongs to this host.
fence:   a changelog without changes that prevents appends by the former writer.
epoch:   the number of a lease acquisition; a host with a lower epoch must not write.

Start at ``keeper``, then ``fence``. ``lease_proof`` stores the hold and compares it with a lease;
``lease_back`` stores the lost lease of a running writer again, ``lease_repair`` derives a new lease
in fsck.
Below: chain, codec.lease (bytes).
Above: changelog, opening, follower, session.
"""
