"""Pages of results, as Markdown and as self-contained HTML. Nothing here imports torch.

A result becomes a ``Page`` of blocks. Each kind of page and each output format has a file of its own.
"""
