"""How often lint is right on public repositories, and the findings that were judged."""
