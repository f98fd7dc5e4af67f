import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class HalfTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(**inputs).loss
        if self.state.global_step % 2 == 0:
            print(f"step {self.state.global_step} loss {loss.item():.4f}")
        return loss


torch.manual_seed(0)
cfg = LlamaConfig(
    vocab_size=40, hidden_size=32, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
    max_position_embeddings=32, bos_token_id=0, eos_token_id=0,
)
model = LlamaForCausalLM(cfg)
# models that were trained in bfloat16 have a few channels like this one, always on for the first token
with torch.no_grad():
    mlp = model.model.layers[0].mlp
    model.model.embed_tokens.weight[0] = 1.0
    mlp.gate_proj.weight[7] = 8.0
    mlp.up_proj.weight[7] = 12.0

rows = []
for k in torch.randint(1, 40, (400,)):
    ids = torch.cat([torch.zeros(1, dtype=torch.long), 1 + (torch.arange(10) + k) % 39])
    rows.append({"input_ids": ids, "labels": ids})
args = TrainingArguments(
    "llama", max_steps=24, per_device_train_batch_size=16, learning_rate=3e-3, logging_steps=100,
    report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
)
HalfTrainer(model, args, train_dataset=rows).train()
