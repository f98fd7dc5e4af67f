"""Tables and pictures of the docs that are made from measurements, one module per source."""
