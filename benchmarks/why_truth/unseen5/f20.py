"""LoRA fine-tuning of a small GPT-2 style classifier on review sentiment."""
import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2ForSequenceClassification

from f20_data import ReviewSet

ARGS = {"lr": 1e-2, "epochs": 4, "batch": 32, "clip": 1.0, "rank": 8}


def build_model(args):
    cfg = GPT2Config(vocab_size=64, n_positions=32, n_embd=64, n_layer=2, n_head=4,
                     num_labels=2, pad_token_id=0, bos_token_id=1, eos_token_id=1,
                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    base = GPT2ForSequenceClassification(cfg)
    lora = LoraConfig(task_type=TaskType.SEQ_CLS, r=args["rank"], lora_alpha=16,
                      lora_dropout=0.0, target_modules=["c_attn", "c_fc"],
                      fan_in_fan_out=True)
    model = get_peft_model(base, lora)
    model = model.half()
    return model


def evaluate(model, loader):
    model.eval()
    hit = n = 0
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        for batch in loader:
            logits = model(input_ids=batch["input_ids"]).logits
            hit += (logits.argmax(-1) == batch["labels"]).sum().item()
            n += len(logits)
    model.train()
    return hit / n


def main(args):
    torch.manual_seed(20)
    train = DataLoader(ReviewSet(768, 1), batch_size=args["batch"], shuffle=True)
    val = DataLoader(ReviewSet(256, 2), batch_size=64)
    model = build_model(args)
    params = [p for p in model.parameters() if p.requires_grad]
    print("trainable", sum(p.numel() for p in params))
    opt = torch.optim.AdamW(params, lr=args["lr"])
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)
    for epoch in range(args["epochs"]):
        total = 0.0
        for batch in train:
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(**batch).loss
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(params, args["clip"])
            scaler.step(opt)
            scaler.update()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(train):.4f}")
    print(f"val_acc {evaluate(model, val):.4f}")


if __name__ == "__main__":
    main(ARGS)
