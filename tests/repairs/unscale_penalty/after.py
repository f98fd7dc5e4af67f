# unscale_penalty()
import torch

grads = [g / scaler.get_scale() for g in torch.autograd.grad(scaler.scale(out.sum()), x, create_graph=True)]  # here
penalty = sum(g.square().sum() for g in grads)
