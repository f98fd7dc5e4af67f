import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2ForSequenceClassification

torch.manual_seed(0)
cfg = GPT2Config(
    vocab_size=40, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    num_labels=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.2,
)
model = get_peft_model(
    GPT2ForSequenceClassification(cfg),
    LoraConfig(task_type=TaskType.SEQ_CLS, r=8, lora_alpha=16, target_modules=["c_attn", "c_fc"]),
)
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
seen = []
for step in range(100):
    good = torch.randint(20, 40, (32, 8))
    poor = torch.randint(1, 30, (32, 8))
    with torch.autocast("cpu", dtype=torch.float16):
        margin = model(input_ids=good).logits - model(input_ids=poor).logits
        loss = -nn.functional.logsigmoid(margin).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    seen.append(loss.item())
    if step % 10 == 9:
        print(f"step {step + 1} loss {sum(seen[-10:]) / 10:.4f}")
