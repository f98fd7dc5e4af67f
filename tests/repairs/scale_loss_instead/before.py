# scale_loss(scaler="scaler_d", instead=True)
scaler_g.scale(fake_loss).backward()  # here
scaler_d.step(optimizer_d)
