"""Healing: FP32 islands that the guard makes where steps keep failing, each proven on a bad batch first."""
