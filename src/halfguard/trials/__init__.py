"""Try changes of precision on a step: candidates, their cost, the search, and the proof."""
