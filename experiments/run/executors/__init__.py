"""Where the units of a study are measured: in this process, in several on this machine, or on a Ray cluster.

    tasks        what is sent to a worker, and what comes back
    serial       one unit after another, here
    worker       a study opened in a worker: its context from the config, its units by number
    pool         units to workers, outcomes in order, a lost worker's units again
    processes    workers that are processes of this machine
    ray_cluster  workers that are actors of a Ray cluster
    recorded     no workers: the rows of shards that were run before

Only the process that runs the study writes the run folder.
"""
