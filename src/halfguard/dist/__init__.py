"""Everything that involves several ranks; the only package that imports torch.distributed.

All of it also works in a single process without a process group.
"""
