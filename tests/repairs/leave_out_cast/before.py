# leave_out_cast()
def register(module, name, schedule, dtype, device):
    module.register_buffer(name, schedule.to(dtype).to(device))  # here
