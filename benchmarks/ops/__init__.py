"""How exact the operations of ``halfguard.ops`` are: float64 references, and errors in ulp."""
