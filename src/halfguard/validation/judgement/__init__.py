"""From the runs of a study to its verdict: statistics, reasons and checklist. Nothing is trained here."""
