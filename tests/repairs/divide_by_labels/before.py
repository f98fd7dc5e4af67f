# divide_by_labels()
import torch.nn.functional as F

loss = F.cross_entropy(logits, target, ignore_index=-1)  # here
