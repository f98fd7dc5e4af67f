"""From the runs of a study to its verdict: statistics, words and checklist, without a run being made."""
