# leave_out_cast()
def register(module, name, schedule, dtype, device):
    module.register_buffer(name, schedule.float().to(device))  # here
