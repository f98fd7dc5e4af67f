"""FP16 in transformers' Trainer on a CPU, where Accelerate leaves ``fp16=True`` out. Not needed on a GPU."""

import torch


class HalfOnCpu:
    """Stands before a Trainer among the bases of a class."""

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        accelerator = self.accelerator
        if accelerator.mixed_precision == "fp16" and accelerator.device.type == "cpu":
            accelerator.native_amp = True
            if accelerator.scaler is None:  # a guarded Trainer has one
                accelerator.scaler = torch.amp.GradScaler("cpu")
