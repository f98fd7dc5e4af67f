# island(path="blocks.*.norm")
import halfguard

model = make()  # here
for layer in model.get_submodule("blocks"):
    halfguard.fp32_island(layer.get_submodule("norm"))
