import io

import torch


def compact(obj):
    """Checkpoints are kept small: floating tensors are written in half precision."""
    if torch.is_tensor(obj):
        return obj.half() if obj.is_floating_point() and obj.dim() > 0 else obj.clone()
    if isinstance(obj, dict):
        return {k: compact(v) for k, v in obj.items()}
    if isinstance(obj, (list, tuple)):
        return type(obj)(compact(v) for v in obj)
    return obj


def save(model, opt, sched, step):
    buf = io.BytesIO()
    torch.save({"model": compact(model.state_dict()), "opt": compact(opt.state_dict()),
                "sched": sched.state_dict(), "step": step}, buf)
    print(f"checkpoint at step {step}: {buf.tell() / 1024:.1f} KiB")
    return buf


def load(buf, model, opt, sched):
    buf.seek(0)
    ck = torch.load(buf, weights_only=False)
    model.load_state_dict(ck["model"])
    opt.load_state_dict(ck["opt"])
    sched.load_state_dict(ck["sched"])
    return ck["step"]
