"""One rule a file: its docstring is its page, ``META`` its facts, ``check`` finds its matches."""
