"""Workers: processes of this machine or actors of a Ray cluster, each of which holds an object and answers calls."""
