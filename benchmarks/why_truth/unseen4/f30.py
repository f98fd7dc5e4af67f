"""LoRA fine-tuning of a small GPT-2 with peft and a manual mixed precision loop."""
import argparse

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel


def sequences(n, seed, length=12, vocab=32):
    """Periodic sequences with a random period."""
    g = torch.Generator().manual_seed(seed)
    base = torch.randint(0, vocab, (n, length), generator=g)
    period = torch.randint(2, 4, (n,), generator=g)
    idx = torch.arange(length)[None] % period[:, None]
    return base.gather(1, idx)


def build_model(dtype, rank):
    cfg = GPT2Config(vocab_size=32, n_positions=16, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0,
                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False)
    base = GPT2LMHeadModel(cfg).to(dtype)
    lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["c_attn", "c_fc", "lm_head"], lora_dropout=0.0,
                      task_type="CAUSAL_LM")
    return get_peft_model(base, lora, autocast_adapter_dtype=False)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dtype", default="float16")
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--rank", type=int, default=8)
    ap.add_argument("--lr", type=float, default=2e-2)
    args = ap.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, args.dtype)
    amp = dtype == torch.float16
    model = build_model(dtype, args.rank).to(device)
    train = DataLoader(TensorDataset(sequences(640, 0)), batch_size=32, shuffle=True)
    valid = sequences(128, 1).to(device)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.lr)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=amp)
    for ep in range(args.epochs):
        model.train()
        for (ids,) in train:
            ids = ids.to(device)
            with torch.autocast(device, dtype=torch.float16, enabled=amp):
                loss = model(input_ids=ids, labels=ids).loss
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
        model.eval()
        with torch.no_grad(), torch.autocast(device, dtype=torch.float16, enabled=amp):
            val = model(input_ids=valid, labels=valid).loss.item()
        print(f"epoch {ep} loss {loss.item():.4f} val_loss {val:.4f}")


if __name__ == "__main__":
    main()
