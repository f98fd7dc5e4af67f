"""The scoreboard of the casebook: every instrument, ours and others', on every program."""
