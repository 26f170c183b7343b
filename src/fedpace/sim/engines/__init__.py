"""Where the clients' work is done: in this process, in worker processes, or on a cluster.

An engine never changes what comes out: each task draws from streams keyed by seed, step and client, and answers come
back in the order in which they were asked for.
"""
