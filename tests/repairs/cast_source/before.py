# cast_source()
def gather(messages, target, index):
    target.index_add_(0, index, messages)  # here
    return target
