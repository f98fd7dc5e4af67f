"""One rule per file: ``META`` says when it is run, ``check`` finds its matches."""
