"""One rule per file: the docstring is its page, ``META`` its metadata, ``check`` finds its matches."""
