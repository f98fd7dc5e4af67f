"""What one rank must agree on with the others; the only room that imports torch.distributed.

Everything here works the same for one process without a group, where there is nobody to agree with.
"""
