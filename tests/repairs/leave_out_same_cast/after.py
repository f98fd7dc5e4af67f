# leave_out_cast(same=(4, 8, 9))
def train(model, rows, valid, dtype, device):
    for x in rows:
        x = x.float()  # here
        x = x.to(device)
        model(x).backward()
    for h in valid:
        print(model(h.float()))
        print(model(h.half()))
