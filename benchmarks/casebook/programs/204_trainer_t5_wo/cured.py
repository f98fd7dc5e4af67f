import torch
from transformers import T5Config, T5ForConditionalGeneration, Trainer, TrainingArguments

torch.manual_seed(0)
config = T5Config(
    vocab_size=50, d_model=32, d_kv=8, d_ff=128, num_layers=2, num_heads=4,
    dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, tie_word_embeddings=False,
)
model = T5ForConditionalGeneration(config)
# the released checkpoints have activations of this size in the last encoder blocks
with torch.no_grad():
    model.encoder.block[1].layer[1].DenseReluDense.wi.weight *= 400
    model.encoder.block[1].layer[1].DenseReluDense.wo.weight *= 400


def in_fp32(module):
    def forward(x):
        with torch.autocast("cpu", enabled=False):
            return torch.nn.functional.linear(x.float(), module.weight)

    return forward


for name, module in model.named_modules():
    if name.endswith(".wo"):
        module.forward = in_fp32(module)


class HalfTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(**inputs).loss
        print(f"step {self.state.global_step} loss {loss.item():.4f}")
        return loss


data = []
for _ in range(320):
    src = torch.randint(1, 50, (8,))
    data.append({"input_ids": src, "labels": src[:4].clone()})

args = TrainingArguments(
    "t5", max_steps=24, per_device_train_batch_size=16, learning_rate=1e-3, logging_steps=100,
    report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
)
HalfTrainer(model, args, train_dataset=data).train()
