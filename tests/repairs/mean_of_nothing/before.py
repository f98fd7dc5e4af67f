# mean_of_nothing()
loss = F.smooth_l1_loss(p[pos].float(), off[pos])  # here
