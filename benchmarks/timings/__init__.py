"""What halfguard costs: ratios from interleaved runs, one measurement per module."""
