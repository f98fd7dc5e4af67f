import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, block):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("tril", torch.tril(torch.ones(block, block)))

    def forward(self, x):
        T = x.size(1)
        q, k, v = self.c_attn(x).chunk(3, dim=-1)
        att = (q @ k.transpose(-2, -1)) * k.size(-1) ** -0.5
        mask = self.tril[:T, :T]
        att = att.masked_fill(mask == 0, torch.finfo(att.dtype).min)
        return self.c_proj(F.softmax(att, dim=-1) @ v)


def main():
    torch.manual_seed(1337)
    emb, attn, head = nn.Embedding(65, 48), CausalSelfAttention(48, 32), nn.Linear(48, 65)
    model = nn.Sequential(emb, attn, head)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    text = torch.arange(65).repeat(40)
    for step in range(20):
        i = torch.randint(0, len(text) - 33, (8,))
        x = torch.stack([text[j : j + 32] for j in i])
        y = torch.stack([text[j + 1 : j + 33] for j in i])
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            logits = model(x)
            loss = F.cross_entropy(logits.view(-1, 65), y.view(-1))
        optim.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optim)
        scaler.update()
        print(f"{step}: loss {loss:.4f}")


if __name__ == "__main__":
    main()
