"""The modules shared by bench/store.py and bench/chaos.py. Standard library only.

Start at ../store.py (plan of a run) or ../chaos.py; `procs` ends every process by its id, `cluster` starts Tessera,
`gluster` the peer, `ceilings` measures the limits of the machine, `report` writes the results.
"""
