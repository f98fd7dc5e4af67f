# anomaly_off()
import torch

torch.autograd.set_detect_anomaly(True)
trainer = Trainer(max_epochs=3, detect_anomaly=True)
