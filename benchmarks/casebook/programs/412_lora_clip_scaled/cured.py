import argparse

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

ap = argparse.ArgumentParser()
ap.add_argument("--lr", type=float, default=0.5)
ap.add_argument("--clip", type=float, default=1.0)
ap.add_argument("--steps", type=int, default=80)
args = ap.parse_args()

torch.manual_seed(0)
cfg = BertConfig(
    vocab_size=40, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=16, num_labels=2, hidden_dropout_prob=0.0, initializer_range=0.2,
)
model = get_peft_model(
    BertForSequenceClassification(cfg),
    LoraConfig(r=8, target_modules=["query", "key", "value", "dense"], modules_to_save=["classifier"]),
)
trainable = [p for p in model.parameters() if p.requires_grad]
opt = torch.optim.SGD(trainable, lr=args.lr)
scaler = torch.amp.GradScaler("cpu")
for step in range(args.steps):
    ids = torch.randint(2, 40, (64, 8))
    y = (ids[:, 0] > 20).long()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(input_ids=ids, labels=y).loss
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(trainable, args.clip)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    if step % 10 == 9:
        print(f"step {step + 1} loss {loss.item():.4f}")
