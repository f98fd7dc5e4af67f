import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

torch.manual_seed(0)
words = ["<pad>", "<eos>"] + [f"w{i}" for i in range(20)]
raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tok = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>")
texts = [" ".join(f"w{(s + j) % 20}" for j in range(10)) for s in torch.randint(0, 20, (240,)).tolist()]
cfg = LlamaConfig(
    vocab_size=22, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
    max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=1, initializer_range=0.1,
)
args = SFTConfig(
    output_dir="o", max_steps=30, per_device_train_batch_size=8, learning_rate=1e-2, logging_steps=3, bf16=False,
    gradient_checkpointing=False, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
)
trainer = SFTTrainer(
    LlamaForCausalLM(cfg).half(), args=args, train_dataset=Dataset.from_dict({"text": texts}), processing_class=tok,
    peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"),
)
for p in trainer.model.parameters():
    if p.requires_grad:
        p.data = p.data.float()
trainer.train()
