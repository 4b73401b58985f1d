"""What bench/store.py and bench/chaos.py share. Standard library only.

Start at ../store.py (plan of a run) or ../chaos.py; `procs` ends every process by its id, `cluster` starts
Tessera, `gluster` the peer, `ceilings` measures what the machine could do, `report` writes what was found.
"""
