# island(path="blocks.*.norm")
import halfguard

model = make()  # here
