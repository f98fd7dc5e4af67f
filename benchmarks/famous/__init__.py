"""Models whose FP16 failures are published, stretched at the published place until they fail here."""
