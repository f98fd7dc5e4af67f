import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
cfg = GPT2Config(
    vocab_size=40, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
)
base = GPT2LMHeadModel(cfg).half()
model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn", "c_fc", "c_proj"]))
trainable = [p for p in model.parameters() if p.requires_grad]
assert all(p.dtype == torch.float32 for p in trainable)
opt = torch.optim.AdamW(trainable, lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(80):
    ids = (torch.arange(12) + torch.randint(0, 40, (16, 1))) % 40
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(input_ids=ids, labels=ids).loss
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(trainable, 1.0)
    scaler.step(opt)
    scaler.update()
    if step % 5 == 0:
        print(f"step {step} loss {loss.item():.4f}")
