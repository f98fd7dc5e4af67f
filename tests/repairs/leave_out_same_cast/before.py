# leave_out_cast(same=(4, 8, 9))
def train(model, rows, valid, dtype, device):
    for x in rows:
        x = x.to(dtype)  # here
        x = x.to(device)
        model(x).backward()
    for h in valid:
        print(model(h.to(dtype)))
        print(model(h.half()))
