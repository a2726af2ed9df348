"""Workers: processes of this machine or actors of a Ray cluster; each holds an object whose methods can be called."""
