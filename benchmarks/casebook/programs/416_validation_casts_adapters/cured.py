import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
cfg = GPT2Config(vocab_size=40, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
base = GPT2LMHeadModel(cfg).half()
model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn", "c_fc"]))
params = [p for p in model.parameters() if p.requires_grad]
opt = torch.optim.AdamW(params, lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)


def sample(n=16):
    return (torch.arange(12) + torch.randint(0, 40, (n, 1))) % 40


@torch.no_grad()
def log_validation(step):
    pipe = model
    pipe.eval()
    ids = sample(4)
    print(f"validation after {step} steps: loss {pipe(input_ids=ids, labels=ids).loss.item():.4f}")
    model.train()


for step in range(1, 81):
    ids = sample()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(input_ids=ids, labels=ids).loss
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f}")
    if step % 40 == 0:
        log_validation(step)
