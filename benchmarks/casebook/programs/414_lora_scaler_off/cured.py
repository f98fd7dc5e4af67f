import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import BertConfig, BertForTokenClassification

torch.manual_seed(0)
cfg = BertConfig(
    vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=32, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2,
)
model = get_peft_model(
    BertForTokenClassification(cfg),
    LoraConfig(r=8, target_modules=["query", "value", "dense"], modules_to_save=["classifier"]),
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3, eps=1e-18)
scaler = torch.amp.GradScaler(device.type, init_scale=2.0**24)
WEIGHT = 1e-6  # this task's share in a multi-task loss

for step in range(100):
    ids = torch.randint(0, 60, (32, 16), device=device)
    tags = ids % 3
    with torch.autocast(device.type, dtype=torch.float16):
        logits = model(input_ids=ids).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten())
    optimizer.zero_grad()
    scaler.scale(loss * WEIGHT).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 9:
        print(f"step {step + 1} loss {loss.item():.4f}")
